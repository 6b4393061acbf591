"""A store and a pub/sub on Redis or Valkey, for use with a queue of another system.

If all three ports are to be on one server, use `App("redis://...")` instead: it needs one round trip where the ports
need several.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from treadle.ports.contract import Listener
from treadle.ports.listeners import call_listeners

log = logging.getLogger("treadle")

TIMEOUT: Final = 10.0  # s per response
PAUSE: Final = 0.5  # s between attempts to reconnect listeners
LISTEN: Final = 5.0  # s for which a listener waits for one message

COUNT: Final = """
local sum = redis.call('INCRBY', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return sum
"""  # one step: after a crash between two, the count would never expire


class _Client:
    """A client for the running event loop. It never retries: a repeated SET NX would fail after the
    first one has won."""

    _unreadable = "strict"  # what to do with bytes that are not UTF-8, as in `bytes.decode`

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._redis: Any = None

    @property
    def redis(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._redis is None or self._loop is not loop:
            self._loop = loop
            self._redis = Redis.from_url(
                self._url,
                decode_responses=True,
                encoding_errors=self._unreadable,
                socket_timeout=TIMEOUT,
                socket_connect_timeout=TIMEOUT,
                retry=Retry(NoBackoff(), 0),
            )
        return self._redis

    async def close(self) -> None:
        client, self._redis = self._redis, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


class RedisStore(_Client):
    """Keys on a server; see `redis_store`."""

    async def get(self, key: str) -> str | None:
        value: str | None = await self.redis.get(key)
        return value

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        await self.redis.set(key, value, px=_milliseconds(ttl))

    async def delete(self, key: str) -> None:
        await self.redis.unlink(key)

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        return bool(await self.redis.set(key, value, nx=True, px=_milliseconds(ttl)))

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        return int(await self.redis.eval(COUNT, 1, key, by, "" if ttl is None else _milliseconds(ttl)))

    async def now(self) -> float:
        seconds, micros = await self.redis.time()
        return float(seconds) + float(micros) / 1e6


class RedisPubSub(_Client):
    """Channels of a server; see `redis_pubsub`."""

    _unreadable = "replace"  # an error in one message would end the listening to all channels

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._confirming: dict[str, asyncio.Future[None]] = {}
        self._heard: Any = None
        self._reading: asyncio.Task[None] | None = None

    async def publish(self, channel: str, text: str) -> None:
        await self.redis.publish(channel, text)

    async def subscribe(self, channel: str, listener: Listener) -> Callable[[], Awaitable[None]]:
        """As `PubSub.subscribe`. Returns when the server has confirmed the subscription."""
        if self._heard is None:
            self._heard = self.redis.pubsub()
        self._listeners[channel].append(listener)
        confirmed = self._confirming[channel] = asyncio.get_running_loop().create_future()
        await self._heard.subscribe(channel)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(self._heard))
        async with asyncio.timeout(TIMEOUT):
            await confirmed

        async def end() -> None:
            self._listeners[channel].remove(listener)
            if not self._listeners[channel] and self._heard is not None:
                await self._heard.unsubscribe(channel)

        return end

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        heard, self._heard = self._heard, None
        self._listeners.clear()
        if heard is not None:
            await heard.aclose()
        await super().close()

    async def _read(self, heard: Any) -> None:
        """Read the messages of all channels. The driver subscribes again when the server is back."""
        while True:
            try:
                message = await heard.get_message(timeout=LISTEN)
            except (RedisError, OSError) as error:
                log.info("listening to Redis: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            if message is None:
                continue
            if message["type"] == "subscribe":
                waiting = self._confirming.pop(message["channel"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
            elif message["type"] == "message":
                channel = message["channel"]
                call_listeners(self._listeners.get(channel, ()), channel, message["data"])


def redis_store(url: str) -> RedisStore:
    """Keys on a Redis or Valkey server: redis://host:6379/0, rediss:// for TLS, unix://. Needs `treadle[redis]`.

    The server must not lose data: no eviction (`maxmemory-policy noeviction`), and `appendonly yes`, with
    `appendfsync always` if every reply must be durable. Writes that a failover loses are lost here too.
    """
    return RedisStore(url)


def redis_pubsub(url: str) -> RedisPubSub:
    """Channels of a Redis or Valkey server, with any configuration: it stores nothing there."""
    return RedisPubSub(url)


def _milliseconds(ttl: float | None) -> int | None:
    return None if ttl is None else max(1, round(ttl * 1000))
