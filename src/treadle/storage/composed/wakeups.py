"""Pushes a wakeup to the queue port for each job that starts to wait for a worker, and pops one when a job is taken.

A wakeup is only a hint; the log decides. One that arrives twice, late, early or never changes nothing. The length of
the queue shows how many jobs wait. A message that cannot be decoded goes to the dead letters with the reason, if
the queue has any.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE, StorageError
from treadle.core.model import Record, State
from treadle.ports import Pulled
from treadle.storage.composed.port_calls import Port, here, quietly

log = logging.getLogger("treadle")

T = TypeVar("T")

LEASE: Final = 30.0  # seconds for which a popped wakeup stays with this process
AWAY: Final = 5.0  # seconds until a wakeup for a queue or task that this process does not run can be popped again
AT_ONCE: Final = 16  # concurrent pushes or acks
BATCH: Final = 10  # wakeups in one pop; the smallest maximum of common queue systems
GRACE: Final = 1.0  # seconds to wait for running pushes and acks when the storage closes
LONG: Final = 60.0  # time limit of a pop in seconds: some systems poll for a while before they answer


class Wakeup(Struct, frozen=True):
    job: str
    queue: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Wakeup).decode


class Wakeups:
    """The wakeups that one process pushes and pops. No method raises: if a push or pop fails, polling finds the job.

    row    the row of a job in this process
    wake  wakes the waiters for a topic in this process
    now    the storage's clock
    """

    def __init__(
        self,
        queue: Port,
        row: Callable[[str], Record | None],
        wake: Callable[[Iterable[str]], None],
        now: Callable[[], float],
    ) -> None:
        self._queue, self._row, self._wake, self._now = queue, row, wake, now
        self._tasks: frozenset[str] | None = frozenset()  # the tasks that this process runs; None: all
        self._queues: frozenset[str] = frozenset()
        self._owed = 0  # jobs taken whose wakeups are not acknowledged yet
        self._acked = 0
        self._kept: list[Pulled] = []  # popped wakeups whose jobs are still queued
        self._work: set[asyncio.Task[None]] = set()
        self._popping: asyncio.Task[None] | None = None

    # --- pushing

    def ring(self, called: Mapping[str, float | None]) -> None:
        """Push a wakeup for each job, delayed until the moment given with it."""
        if called:
            self._start(functools.partial(self._ring, dict(called)))

    async def _ring(self, called: Mapping[str, float | None]) -> None:
        async def push(job: str) -> None:
            row = self._row(job)
            body = _encode(Wakeup(job, row.job.queue if row is not None else "")).decode()
            await self._queue(self._queue.port.push, body, delay=self._delay(called[job]))

        await _each(called, push)

    def _delay(self, due: float | None) -> float:
        """Seconds until `due`, but at most what the queue allows. A wakeup that comes too early is released again."""
        delay = max(0.0, due - self._now()) if due is not None else 0.0
        most = self._queue.bound("max_delay")
        return delay if most is None else min(delay, most)

    # --- popping

    def serve(self, queues: Iterable[str], tasks: Iterable[str] | None) -> None:
        """Note the queues and tasks of this process's latest claim."""
        self._queues, self._tasks = frozenset(queues), None if tasks is None else frozenset(tasks)

    def took(self, jobs: int) -> None:
        """Acknowledge as many wakeups as jobs were taken, in the background."""
        if jobs:
            self._owed += jobs
            self.listen()

    def listen(self) -> None:
        """Pop wakeups once, in the background."""
        if self._popping is None or self._popping.done():
            self._popping = self._start(self._take)

    async def _take(self) -> None:
        """Pop once, and again while wakeups are owed or every popped one was acknowledged."""
        while True:
            while self._owed and self._kept:
                await self._done(self._kept.pop())
            owed = self._owed
            pulled: list[Pulled] = await self._queue(self._queue.port.pop, max(owed, BATCH), LEASE, patience=LONG)
            if not pulled:
                self._owed = max(0, self._owed - owed)  # another process has popped them, or they were never pushed
                return
            before = self._acked
            await _each(pulled, self._heard)
            if not self._owed and self._acked - before < len(pulled):
                return

    async def _heard(self, pulled: Pulled) -> None:
        try:
            wakeup = _decode(pulled.body)
        except UNREADABLE as error:
            await self._bury(pulled, f"expected a wake-up with the id of a job: {error}")
            return
        row = self._row(wakeup.job)
        if row is None or row.state is not State.READY:
            await self._done(pulled)
        elif row.queue_position is None and row.blocked_on is None:
            await self._queue(self._queue.port.release, pulled.handle, self._delay(row.due_at))
        elif row.job.queue not in self._queues or (self._tasks is not None and row.job.task not in self._tasks):
            await self._queue(self._queue.port.release, pulled.handle, AWAY)
        elif self._owed:
            await self._done(pulled)
        else:
            self._kept.append(pulled)
            del self._kept[:-BATCH]  # the others return to the queue when their leases expire
            self._wake([f"queue:{row.job.queue}"])

    async def _bury(self, pulled: Pulled, reason: str) -> None:
        if self._queue.has("dead_letter"):
            log.warning("a message in the queue is moved to the dead letters: %s", reason)
            await self._queue(self._queue.port.dead_letter, pulled.handle, reason)
        else:
            log.error("a message in the queue, which has no dead_letter, is deleted: %s; %.200r", reason, pulled.body)
            await self._queue(self._queue.port.ack, pulled.handle)

    async def _done(self, pulled: Pulled) -> None:
        self._owed, self._acked = max(0, self._owed - 1), self._acked + 1
        await self._queue(self._queue.port.ack, pulled.handle)

    # --- background tasks

    def _start(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(quietly(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def abandon(self) -> None:
        """Cancel all background work."""
        work = here(self._work)
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work)

    async def close(self) -> None:
        """Wait up to `GRACE` seconds for running work, then stop and release the wakeups that were popped and not
        acknowledged."""
        if work := here(self._work):
            await asyncio.wait(work, timeout=GRACE)
        await self.abandon()
        kept, self._kept, self._owed = self._kept, [], 0

        async def give_back(pulled: Pulled) -> None:
            await self._queue(self._queue.port.release, pulled.handle)

        await _each(kept, give_back)


async def _each(items: Iterable[T], call: Callable[[T], Awaitable[None]]) -> None:
    """Call with each item, `AT_ONCE` at a time; a StorageError of one call does not stop the others."""
    remaining = iter(items)

    async def work() -> None:
        for item in remaining:
            with suppress(StorageError):
                await call(item)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
