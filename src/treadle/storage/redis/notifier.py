"""Receives what the scripts publish, on one connection that reconnects by itself.

It unsubscribes from channels without waiters. Messages are only hints: polling finds the same changes later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import hiredis
import msgspec

from treadle.storage.redis.pool import Pool
from treadle.storage.redis.topology import CONNECT
from treadle.storage.topic_waiters import TopicWaiters

AGAIN: Final = (0.1, 5.0)  # seconds before reconnecting: the first pause, and the longest
IDLE: Final = 30.0  # seconds without a waiter after which a channel is left
NEW: Final = 5.0  # IDLE right after opening, so that a process that only enqueues does not receive its own topics
PING: Final = 15.0  # seconds of silence after which the connection is checked

Take = Callable[[bytes], None]

_topics = msgspec.msgpack.Decoder(list[str]).decode


class Notifier:
    """Subscribes to two channels: `say` (queues, workers) and `ends` (jobs), so that workers need not receive every
    ending. Each mailbox for direct hand-off has a channel of its own."""

    def __init__(self, pool: Pool, tag: str, waiters: TopicWaiters) -> None:
        self._pool, self._tag, self._waiters = pool, tag, waiters
        self._posts: dict[bytes, Take] = {}
        self._channels = {"job": f"{tag}:ends".encode(), "": f"{tag}:say".encode()}
        self._listening: set[bytes] = set()  # confirmed
        self._wanted: dict[bytes, float] = {}  # channel -> the last moment at which it had a waiter
        self._waiting: dict[bytes, int] = {}
        self._connection: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0  # checks since the last message
        self._pause = AGAIN[0]  # seconds before the next attempt to reconnect
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self.refusal: str | None = None  # the server's error if it refused SUBSCRIBE

    def post(self, take: Take) -> Mailbox:
        """Subscribe to a new channel for one mailbox."""
        mailbox = Mailbox(f"{self._tag}:hand:{os.urandom(8).hex()}", self._close_post)
        self._posts[mailbox.address.encode()] = take
        if self._connection is not None:
            self._send(b"SUBSCRIBE", mailbox.address)
        return mailbox

    def _close_post(self, address: str) -> None:
        if self._posts.pop(address.encode(), None) is not None and self._connection is not None:
            self._send(b"UNSUBSCRIBE", address)

    def _channel(self, topic: str) -> bytes:
        return self._channels["job" if topic.startswith("job:") else ""]

    async def open(self) -> None:
        """Subscribe to both channels, so that nothing published from now on is missed.

        It leaves `ends` at the first message that nothing in this process waits for. Otherwise a worker with a backlog
        would receive every ending that it settles: for a trip of 8 jobs 7 % of the server's time, and one more turn of
        the loop."""
        idle = asyncio.get_running_loop().time() - IDLE
        self._wanted = {self._channels[""]: idle + NEW, self._channels["job"]: idle}
        self._task = asyncio.create_task(self._keep_listening())
        with contextlib.suppress(TimeoutError):  # polling works meanwhile, and the task keeps trying
            async with asyncio.timeout(CONNECT):
                await self._ready.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @contextlib.contextmanager
    def listening(self, topics: Sequence[str]) -> Iterator[None]:
        """Keep the channels of these topics subscribed while the caller waits for them."""
        now, channels = asyncio.get_running_loop().time(), {self._channel(topic) for topic in topics}
        for channel in channels:
            self._wanted[channel] = now
            self._waiting[channel] = self._waiting.get(channel, 0) + 1
        if not channels <= self._listening and self._connection is not None:
            self._send(b"SUBSCRIBE", *(channels - self._listening))
        try:
            yield
        finally:
            now = asyncio.get_running_loop().time()
            for channel in channels:
                self._waiting[channel] -= 1
                self._wanted[channel] = now

    def _send(self, *command: Any) -> None:
        with contextlib.suppress(Exception):  # `_keep_listening` notices a lost connection and reconnects
            self._connection._writer.write(hiredis.pack_command(command))

    async def _keep_listening(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._connection = await self._pool.connect()
                line = _Line(self._connection, self._take)
                if self._wanted or self._posts:
                    self._send(b"SUBSCRIBE", *self._wanted, *self._posts)
                self._silent = 0
                self._timer = loop.call_later(PING, self._look)
                await line.lost
                raise ConnectionError("the server closed the connection")
            except asyncio.CancelledError:
                raise
            except Exception:  # any error: reconnect; polling works meanwhile
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, AGAIN[1])
            finally:
                if self._timer is not None:
                    self._timer.cancel()
                self._listening.clear()
                if self._connection is not None:
                    self._connection._close()
                    self._connection = None

    def _look(self) -> None:
        """Send a PING after silence. If nothing comes after it either, close the connection to reconnect."""
        if self._silent > 1:
            self._connection._close()
        elif self._silent:
            self._send(b"PING")
        self._silent += 1
        self._timer = asyncio.get_running_loop().call_later(PING, self._look)

    def _take(self, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):  # SUBSCRIBE was refused: reconnect later
            self.refusal = str(reply)
            self._ready.set()
            self._connection._close()
            return
        self._pause, self._silent = AGAIN[0], 0
        if not isinstance(reply, list) or len(reply) != 3:
            return
        kind, channel, data = reply
        if kind == b"message":
            if channel in self._posts:
                self._posts[channel](data)
            elif not self._waiting.get(channel) and self._is_idle(channel):
                self._wanted.pop(channel, None)
                self._send(b"UNSUBSCRIBE", channel)
            else:
                self._waiters.wake(_topics(data))
        elif kind == b"subscribe" and channel not in self._posts:
            self.refusal = None
            self._listening.add(channel)
            if self._ready.is_set():  # a message may have been missed meanwhile
                self._waiters.wake([topic for topic in self._waiters.topics if self._channel(topic) == channel])
            if self._listening >= set(self._wanted):
                self._ready.set()
        elif kind == b"unsubscribe":
            self._listening.discard(channel)

    def _is_idle(self, channel: bytes) -> bool:
        return asyncio.get_running_loop().time() - self._wanted.get(channel, 0.0) > IDLE


class Mailbox:
    """The channel of one worker's mailbox; see `treadle.storage.optional_parts.Post`."""

    def __init__(self, address: str, close: Callable[[str], None]) -> None:
        self.address, self._close = address, close

    def close(self) -> None:
        self._close(self.address)


class _Line(asyncio.Protocol):
    """Takes over a connection that the driver has made, and passes messages on in the turn of the loop in which they
    arrive. A stream with a reading task would delay them by another turn, the driver's own reading by 0.1 ms."""

    def __init__(self, connection: Any, take: Callable[[Any], None]) -> None:
        self._connection, self._take = connection, take
        self._reader = hiredis.Reader()
        self.lost = asyncio.get_running_loop().create_future()
        connection._writer.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (message := self._reader.gets()) is not False:
                self._take(message)
        except Exception:  # not the protocol: reconnect and subscribe again
            self._connection._close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
