"""All three ports on NATS: a JetStream work queue, a key-value bucket, and plain subjects.

Without it NATS would be one more broker to be taken for a storage of jobs, which it is not by itself. What is its own
is said here: an ack counts whoever sends it, so a lease that is over by our clock is over; a delay is a message that is
given back until its moment has come; the ends of keys are kept by the clocks of those who use them.
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

BEAT: Final = 10.0  # s after which the server gives a message to somebody else if its reader is gone
FETCH: Final = 0.2  # s a pop waits for the server's answer that there is nothing
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
        """Make what has to be there."""

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
        self._held: dict[str, tuple[Any, float]] = {}  # handle -> message, until when it is ours
        self._beating: asyncio.Task[None] | None = None

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        """A dedupe key holds for the two minutes that the server remembers it."""
        await self._connected()
        headers = {DUE: repr(wall() + delay)} if delay > 0 else {}
        if dedupe_key is not None:
            headers["Nats-Msg-Id"] = dedupe_key
        await self._js.publish(self._name, body.encode(), headers=headers or None, timeout=TIMEOUT)

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        await self._connected()
        found: list[Pulled] = []
        while len(found) < limit:
            try:
                messages = await self._reader.fetch(limit - len(found), timeout=FETCH)
            except TimeoutError:  # the client's own is one; it raises Python's when the answer comes at the last moment
                break
            for message in messages:
                due = float((message.headers or {}).get(DUE, 0))
                if due > wall():
                    await message.nak(delay=due - wall())
                    continue
                found.append(self._lease(message, lease))
        return found

    def _lease(self, message: Any, lease: float) -> Pulled:
        place = message.metadata.sequence.stream
        for handle in [handle for handle in self._held if handle.partition("/")[0] == str(place)]:
            del self._held[handle]  # it was ours before, and ran out
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
        """Into the other stream first, then out of this one: a crash in between leaves it in both."""
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
        """The server's leases are short, so that those of a dead process are; ours are as long as was asked."""
        while self._held:
            soonest = min(until for _, until in self._held.values())
            await asyncio.sleep(max(0.01, min(BEAT / 3, soonest - monotonic())))
            for handle in list(self._held):
                message, until = self._held.get(handle, (None, 0.0))  # of now: it may be over, or longer, meanwhile
                if message is None:
                    continue
                with contextlib.suppress(Exception):  # the connection comes back, or the lease runs out
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
    """A bucket of JetStream; see `nats_store`. A value is its end, a line break, and the text."""

    def __init__(self, url: str, bucket: str, *, replicas: int = 1) -> None:
        super().__init__(url)
        self._bucket, self._replicas = bucket, replicas
        self._kv: Any = None

    async def get(self, key: str) -> str | None:
        found = await self._entry(key)
        return found[0] if found is not None else None

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
            return await self._replace(key, value, ttl, entry.revision)  # it is there, and its end has come
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

    async def _entry(self, key: str) -> tuple[str, int] | None:
        await self._connected()
        entry = await self._raw(key)
        text = _read(entry.value) if entry is not None else None
        return None if text is None else (text, entry.revision)

    async def _raw(self, key: str) -> Any:
        try:
            return await self._kv.get(_name(key))
        except KeyNotFoundError:  # KeyDeletedError is one, too
            return None

    async def _prepare(self, client: Any) -> None:
        js = client.jetstream(timeout=TIMEOUT)
        # Not `direct`: an answer of a follower may be older than what somebody was told already.
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
            listener(message.data.decode())

        client = await self._connected()
        subscription = await client.subscribe(f"treadle.{_name(channel)}", cb=hear)
        await client.flush(timeout=int(TIMEOUT))
        return subscription.unsubscribe  # type: ignore[no-any-return]


def nats_queue(url: str, name: str = "treadle", *, replicas: int = 1) -> NatsQueue:
    """A JetStream stream of that name, as a work queue; and `<name>_dead` for what is set aside. Both are made if they
    are not there, on disk, on so many servers. Needs `treadle[nats]`, and a server with JetStream. An attempt counts
    deliveries, also those of messages that were not due yet."""
    return NatsQueue(url, name, replicas=replicas)


def nats_store(url: str, bucket: str = "treadle", *, replicas: int = 1) -> NatsStore:
    """A JetStream key-value bucket, made if it is not there. Values are up to what the server takes in one message (1
    MB unless told otherwise). It has no clock of its own: those of all machines must agree."""
    return NatsStore(url, bucket, replicas=replicas)


def nats_pubsub(url: str) -> NatsPubSub:
    """Subjects below `treadle.`."""
    return NatsPubSub(url)


async def _made(asked: Any, make: Callable[[], Any]) -> None:
    """What is not there is made; if somebody else does so in the same moment, that is as good."""
    try:
        await asked
    except NotFoundError:
        with contextlib.suppress(BadRequestError):
            await make()


def _name(text: str) -> str:
    """A key as the server takes it: other characters as `=` and two hex digits each."""
    return "".join(chr(code) if chr(code) in PLAIN else f"={code:02X}" for code in text.encode())


def _ending(value: str, ttl: float | None) -> bytes:
    return f"{'' if ttl is None else repr(wall() + ttl)}\n{value}".encode()


def _read(data: bytes | None) -> str | None:
    """The text, unless its end has come."""
    end, _, text = (data or b"\n").decode().partition("\n")
    return None if end and float(end) <= wall() else text
