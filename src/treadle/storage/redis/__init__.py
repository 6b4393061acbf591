"""The storage on a Redis or Valkey server: the fastest one, for many processes and machines."""

from treadle.storage.redis.shards import ShardedRedis
from treadle.storage.redis.storage import RedisStorage

__all__ = ["RedisStorage", "ShardedRedis"]
