"""All three ports on NATS: a JetStream work queue, a key-value bucket, and plain subjects.

NATS accepts an ack from any reader, so this module also ends leases by its own clock. A delayed message is returned to
the server until it is due. Keys expire by the clocks of the machines that use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import nats
from nats.js.api import AckPolicy, ConsumerConfig, KeyValueConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError

from treadle.core.clock import monotonic, wall
from treadle.ports.contract import Listener, Pulled
from treadle.ports.listeners import call_listeners

BEAT: Final = 10.0  # s without a sign of life of the reader after which the server delivers a message again
FETCH: Final = 0.2  # s for which a pop waits for the response that there is no message
DUE: Final = "Treadle-Due"
REASON: Final = "Treadle-Reason"
TIMEOUT: Final = 10.0  # s
PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class _Client:
    """One connection for the running event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._nats: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None

    async def _connected(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._opening is None:
            self._loop, self._opening, self._nats = loop, asyncio.Lock(), None
        async with self._opening:
            if self._nats is None:
                client = await nats.connect(self._url, connect_timeout=int(TIMEOUT), max_reconnect_attempts=-1)
                try:
                    await self._prepare(client)
                except BaseException:
                    await client.close()
                    raise
                self._nats = client
        return self._nats

    async def _prepare(self, client: Any) -> None:
        """Create missing streams and buckets."""

    async def close(self) -> None:
        client, self._nats = self._nats, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()


class NatsQueue(_Client):
    """A work queue of JetStream; see `nats_queue`."""

    def __init__(self, url: str, name: str, *, replicas: int = 1) -> None:
        super().__init__(url)
        self._name, self._replicas = name, replicas
        self._dead = f"{name}_dead"
        self._js: Any = None
        self._reader: Any = None
        self._held: dict[str, tuple[Any, float]] = {}  # handle -> (message, end of the lease)
        self._beating: asyncio.Task[None] | None = None

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        """As `Queue.push`. The server remembers a dedupe key for two minutes."""
        await self._connected()
        headers = {DUE: repr(wall() + delay)} if delay > 0 else {}
        if dedupe_key is not None:
            headers["Nats-Msg-Id"] = dedupe_key
        await self._js.publish(self._name, body.encode(), headers=headers or None, timeout=TIMEOUT)

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        await self._connected()
        leased: list[Pulled] = []
        while len(leased) < limit:
            try:
                messages = await self._reader.fetch(limit - len(leased), timeout=FETCH)
            except TimeoutError:  # the client's own error is a subclass
                break
            for message in messages:
                due = float((message.headers or {}).get(DUE, 0))
                if due > wall():
                    await message.nak(delay=due - wall())
                    continue
                leased.append(self._lease(message, lease))
        return leased

    def _lease(self, message: Any, lease: float) -> Pulled:
        place = message.metadata.sequence.stream
        for handle in [handle for handle in self._held if handle.partition("/")[0] == str(place)]:
            del self._held[handle]  # an earlier lease of this process, which expired
        count = message.metadata.num_delivered or 1
        handle = f"{place}/{count}"
        self._held[handle] = message, monotonic() + lease
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())
        return Pulled(message.data.decode(), handle, count)

    async def extend(self, handle: str, lease: float) -> bool:
        message = self._ours(handle)
        if message is None:
            return False
        await message.in_progress()
        self._held[handle] = message, monotonic() + lease
        return True

    async def ack(self, handle: str) -> bool:
        message = self._ours(handle)
        if message is None:
            return False
        await message.ack_sync(timeout=TIMEOUT)
        self._held.pop(handle, None)
        return True

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        message = self._ours(handle)
        if message is None:
            return False
        await message.nak(delay=delay if delay > 0 else None)
        await (await self._connected()).flush()
        self._held.pop(handle, None)
        return True

    async def dead_letter(self, handle: str, reason: str) -> bool:
        """Add the message to the stream of dead letters, then delete it here: after a crash in between it is in
        both."""
        message = self._ours(handle)
        if message is None:
            return False
        headers = {REASON: " ".join(reason.split())[:1000]}
        await self._js.publish(self._dead, message.data, headers=headers, timeout=TIMEOUT)
        return await self.ack(handle)

    async def size(self) -> int:
        await self._connected()
        return int((await self._js.stream_info(self._name)).state.messages)

    async def close(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])
        self._held.clear()
        await super().close()

    def _ours(self, handle: str) -> Any:
        message, until = self._held.get(handle, (None, 0.0))
        if until > monotonic():
            return message
        self._held.pop(handle, None)
        return None

    async def _beat(self) -> None:
        """Keep leases at the server as long as the readers want. The server's own are short, in case the process
        dies."""
        while self._held:
            soonest = min(until for _, until in self._held.values())
            await asyncio.sleep(max(0.01, min(BEAT / 3, soonest - monotonic())))
            for handle in list(self._held):
                message, until = self._held.get(handle, (None, 0.0))  # read again: it may have ended or been extended
                if message is None:
                    continue
                with contextlib.suppress(Exception):  # the connection is restored, or the lease expires
                    if until > monotonic():
                        await message.in_progress()
                    else:
                        del self._held[handle]
                        await message.nak()

    async def _prepare(self, client: Any) -> None:
        self._js = client.jetstream(timeout=TIMEOUT)
        for name, retention in ((self._name, RetentionPolicy.WORK_QUEUE), (self._dead, RetentionPolicy.LIMITS)):
            stream = StreamConfig(
                name=name, subjects=[name], retention=retention, storage=StorageType.FILE, num_replicas=self._replicas
            )
            await _made(self._js.stream_info(name), functools.partial(self._js.add_stream, stream))
        config = ConsumerConfig(
            durable_name="treadle", ack_policy=AckPolicy.EXPLICIT, ack_wait=BEAT, max_ack_pending=-1, max_deliver=-1
        )
        self._reader = await self._js.pull_subscribe(self._name, durable="treadle", stream=self._name, config=config)


class NatsStore(_Client):
    """A bucket of JetStream; see `nats_store`. A stored value is its expiry, a line break, and the text."""

    def __init__(self, url: str, bucket: str, *, replicas: int = 1) -> None:
        super().__init__(url)
        self._bucket, self._replicas = bucket, replicas
        self._kv: Any = None

    async def get(self, key: str) -> str | None:
        await self._connected()
        entry = await self._raw(key)
        return None if entry is None else _read(entry.value)

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        await self._connected()
        await self._kv.put(_name(key), _ending(value, ttl))

    async def delete(self, key: str) -> None:
        await self._connected()
        await self._kv.purge(_name(key))

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        await self._connected()
        try:
            await self._kv.create(_name(key), _ending(value, ttl))
        except KeyWrongLastSequenceError:
            entry = await self._raw(key)
            if entry is None or _read(entry.value) is not None:
                return False
            return await self._replace(key, value, ttl, entry.revision)  # it exists, but has expired
        return True

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        await self._connected()
        while True:
            entry = await self._raw(key)
            text = _read(entry.value) if entry is not None else None
            total = int(text or 0) + by
            if entry is None:
                if await self.set_if_absent(key, str(total), ttl):
                    return total
            elif await self._replace(key, str(total), ttl, entry.revision):
                return total

    async def _replace(self, key: str, value: str, ttl: float | None, revision: int) -> bool:
        try:
            await self._kv.update(_name(key), _ending(value, ttl), last=revision)
        except (KeyWrongLastSequenceError, BadRequestError):
            return False
        return True

    async def _raw(self, key: str) -> Any:
        try:
            return await self._kv.get(_name(key))
        except KeyNotFoundError:  # or KeyDeletedError, a subclass
            return None

    async def _prepare(self, client: Any) -> None:
        js = client.jetstream(timeout=TIMEOUT)
        # Not `direct`: a follower may return older values than other callers have already read.
        config = KeyValueConfig(
            bucket=self._bucket, history=1, storage=StorageType.FILE, replicas=self._replicas, direct=False
        )
        await _made(js.key_value(self._bucket), functools.partial(js.create_key_value, config))
        self._kv = await js.key_value(self._bucket)


class NatsPubSub(_Client):
    """Subjects; see `nats_pubsub`."""

    async def publish(self, channel: str, text: str) -> None:
        client = await self._connected()
        await client.publish(f"treadle.{_name(channel)}", text.encode())
        await client.flush(timeout=int(TIMEOUT))

    async def subscribe(self, channel: str, listener: Listener) -> Callable[[], Awaitable[None]]:
        async def hear(message: Any) -> None:
            call_listeners((listener,), channel, message.data.decode(errors="replace"))

        client = await self._connected()
        subscription = await client.subscribe(f"treadle.{_name(channel)}", cb=hear)
        await client.flush(timeout=int(TIMEOUT))
        return subscription.unsubscribe  # type: ignore[no-any-return]


def nats_queue(url: str, name: str = "treadle", *, replicas: int = 1) -> NatsQueue:
    """A JetStream stream of that name, as a work queue, and `<name>_dead` for dead letters. Both are created if
    missing, on disk, with this number of replicas. Needs `treadle[nats]` and a server with JetStream. Attempts count
    all deliveries, including those of messages that were not due yet."""
    return NatsQueue(url, name, replicas=replicas)


def nats_store(url: str, bucket: str = "treadle", *, replicas: int = 1) -> NatsStore:
    """A JetStream key-value bucket, created if missing. Values are limited by the server's message size (1 MB by
    default). It has no clock, so the clocks of all machines must agree."""
    return NatsStore(url, bucket, replicas=replicas)


def nats_pubsub(url: str) -> NatsPubSub:
    """Subjects below `treadle.`."""
    return NatsPubSub(url)


async def _made(look: Any, make: Callable[[], Any]) -> None:
    """Create what is missing, unless another process creates it at the same time."""
    try:
        await look
    except NotFoundError:
        with contextlib.suppress(BadRequestError):
            await make()


def _name(text: str) -> str:
    """A key in the characters that the server accepts: any other one as `=` and two hex digits per byte."""
    return "".join(chr(code) if chr(code) in PLAIN else f"={code:02X}" for code in text.encode())


def _ending(value: str, ttl: float | None) -> bytes:
    return f"{'' if ttl is None else repr(wall() + ttl)}\n{value}".encode()


def _read(data: bytes | None) -> str | None:
    """The text, unless it has expired."""
    end, _, text = (data or b"\n").decode().partition("\n")
    return None if end and float(end) <= wall() else text
