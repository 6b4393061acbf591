"""Hints between processes: one connection that listens and notifies, and reconnects by itself.

A hint is sent after the commit that it reports, concurrently with the caller. No call depends on its arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from treadle.core.errors import UNREADABLE
from treadle.storage.postgres.connection import Connection, connect
from treadle.storage.postgres.errors import ServerError
from treadle.storage.postgres.pool import CONNECT
from treadle.storage.postgres.rows import unescaped
from treadle.storage.postgres.statements import channel_of, quoted
from treadle.storage.postgres.topics import KINDS, NOTIFY, kind_of, payloads
from treadle.storage.topic_waiters import TopicWaiters

AGAIN: Final = (0.1, 5.0)  # s between two attempts to reconnect: the first, and the longest
PING: Final = 20.0  # s of silence before the connection is checked
LIMIT: Final = 5.0  # s for the result of a statement on it
IDLE: Final = 30.0  # s without a waiter for a kind of topic before its channel is left
NEW: Final = 5.0  # the same right after opening: a process that only enqueues need not receive hints for every job
GAP: Final = 0.005  # s between two hints of a process; the topics of calls in between are sent together
SLOWER: Final = 4  # a gap is this many times as long as the hint before took: a busy server gets fewer, larger ones
MOST_GAP: Final = 0.05  # s
LATE: Final = 0.25  # s after listening began: a call that saw no listener has usually committed by then
LAST: Final = 0.5  # s that `close` waits for the last hint
# Held while its session listens: functions leave out topics that no session listens to, see `noted_topics`.
LOCK: Final = "SELECT pg_advisory_lock_shared(hashtextextended('{}', 0))"
UNLOCK: Final = "SELECT pg_advisory_unlock_shared(hashtextextended('{}', 0))"

_topics = msgspec.json.Decoder(list[str]).decode


class Notifier:
    """Two channels, `say` (queues, workers) and `ends` (jobs), so that workers do not receive a hint for every
    ending."""

    def __init__(self, conninfo: str, schema: str, waiters: TopicWaiters) -> None:
        self._conninfo, self._schema, self._waiters = conninfo, schema, waiters
        self._channels = {kind: channel_of(schema, kind) for kind in KINDS}
        self._kinds = {channel: kind for kind, channel in self._channels.items()}
        self._listening: set[str] = set()  # kinds; confirmed
        self._waiting = dict.fromkeys(KINDS, 0)
        self._last = dict.fromkeys(KINDS, 0.0)  # kind -> when a waiter last waited for it
        self._change = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._line: Connection | None = None
        self._turn = asyncio.Lock()  # the connection runs one statement at a time
        self._unsent: set[str] = set()
        self._prepare = True
        self._sending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen to both channels, so that no topic published from now on is missed."""
        self._last = dict.fromkeys(KINDS, asyncio.get_running_loop().time() - IDLE + NEW)
        self._task = asyncio.create_task(self._keep_listening())
        with contextlib.suppress(TimeoutError):  # until the task succeeds, waiters poll
            async with asyncio.timeout(CONNECT):
                await self._ready.wait()

    async def close(self) -> None:
        """Send the topics that are left, and release the connection."""
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            if self._sending is not None and task.get_loop() is asyncio.get_running_loop():
                await asyncio.wait([self._sending], timeout=LAST)
                self._sending.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def publish(self, topics: Iterable[str]) -> None:
        """Wake the waiters of this process now, and those of other processes through the server."""
        named = set(topics)
        self._waiters.wake(named)
        if self._task is not None:
            self._unsent |= named
            if self._sending is None or self._sending.done():
                self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._unsent:
            topics, self._unsent = self._unsent, set()
            line, began = self._line, asyncio.get_running_loop().time()
            if line is not None and line.open:
                try:
                    async with self._turn:
                        await line.run(NOTIFY, [payloads(self._schema, topics)], LIMIT, often=self._prepare)
                except ServerError:  # the session of a pooler lacks our statement, or the server's queue is full
                    self._prepare = False
                    line.close()
                except Exception:
                    pass
            if self._task is not None:
                took = asyncio.get_running_loop().time() - began
                await asyncio.sleep(max(GAP, min(SLOWER * took, MOST_GAP)))

    async def wait(self, topics: Sequence[str], timeout: float) -> set[str]:
        kinds = {kind_of(topic) for topic in topics}
        for kind in kinds:
            self._waiting[kind] += 1
        if not kinds <= self._listening:
            self._change.set()
        try:
            return await self._waiters.wait(topics, timeout)
        finally:
            now = asyncio.get_running_loop().time()
            for kind in kinds:
                self._waiting[kind] -= 1
                self._last[kind] = now

    async def _keep_listening(self) -> None:
        pause = AGAIN[0]
        while True:
            line: Connection | None = None
            try:
                line = self._line = Connection(await connect(self._conninfo, CONNECT), True, self._heard)
                await self._listen(line)
                pause, rest = AGAIN[0], NEW
                while line.open:
                    await self._quiet(line, rest)
                    await self._listen(line)
                    rest = PING
            except Exception:  # after any error: waiters poll, and the loop tries again
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN[1])
            finally:
                self._listening.clear()
                self._line = None
                if line is not None:
                    line.close()

    async def _quiet(self, line: Connection, rest: float) -> None:
        """Wait until the wanted channels change, the connection is lost, or `rest` seconds have passed."""
        waits: Sequence[Callable[[], object]] = (self._change.wait, line.lost)
        tasks = [asyncio.ensure_future(wait()) for wait in waits]  # type: ignore[call-overload]
        try:
            await asyncio.wait(tasks, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, line: Connection) -> None:
        """Listen to the channels that are wanted and leave the others; with nothing to change, check the connection."""
        self._change.clear()
        now = asyncio.get_running_loop().time()
        wanted = {kind for kind in KINDS if self._waiting[kind] or now - self._last[kind] < IDLE}
        changes: list[str] = []
        for kind in KINDS:
            channel = self._channels[kind]
            if kind in wanted - self._listening:
                changes += [f"LISTEN {quoted(channel)}", LOCK.format(channel)]
            elif kind in self._listening - wanted:
                changes += [UNLOCK.format(channel), f"UNLISTEN {quoted(channel)}"]
        for change in changes or ["SELECT 1"]:
            async with self._turn:
                await line.run(change, (), LIMIT, often=False)
        new, self._listening = wanted - self._listening, wanted
        if new:
            if self._ready.is_set():  # topics may have been published meanwhile
                self._wake(new)
            line.loop.call_later(LATE, self._wake, new)
        self._ready.set()

    def _wake(self, kinds: set[str]) -> None:
        self._waiters.wake([topic for topic in self._waiters.topics if kind_of(topic) in kinds])

    def _heard(self, channel: str, payload: str) -> None:
        """A notification of another session. This process wakes its waiters itself for what it publishes."""
        if channel in self._kinds:
            with contextlib.suppress(*UNREADABLE):
                self._waiters.wake([unescaped(topic) for topic in _topics(payload)])
