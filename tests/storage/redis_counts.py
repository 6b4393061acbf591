"""Changes a kept count on a Redis server, as no script does: for the laws of repairs."""

from __future__ import annotations

from treadle.core.query_model import Kind
from treadle.storage.contract import Storage
from treadle.storage.redis import RedisStorage, ShardedRedis


async def spoil(storage: Storage, queue: str, task: str, kind: Kind, by: int) -> None:
    first = storage._first if isinstance(storage, ShardedRedis) else storage
    assert isinstance(first, RedisStorage)
    await first.write("HINCRBY", "counts", f"{kind}:{queue}\0{task}", by)
