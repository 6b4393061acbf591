"""What goes through the queue: a bell for each job that begins to wait for a worker, popped when one takes a job.

Without it an idle worker would learn of work by polling alone wherever nobody listens, and whoever watches the queue
would not see how much there is to do. A bell carries an id and nothing else that counts: the truth is in the log, so a
bell that comes twice, late, early or never changes nothing. One that cannot be read is set aside with the reason.
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

from treadle.core.model import Record, State
from treadle.errors import UNREADABLE, StorageError
from treadle.ports import Pulled
from treadle.storage.composed.port_calls import Port, here

log = logging.getLogger("treadle")

T = TypeVar("T")

LEASE: Final = 30.0  # s a bell is ours while somebody may still take the job
AWAY: Final = 5.0  # s until a bell for a queue or task that nobody here runs is looked at again
AT_ONCE: Final = 16  # pushes or acks on their way together
BATCH: Final = 10  # bells in one pop; what the smallest of the real systems answers at most
GRACE: Final = 1.0  # s for pushes and acks on their way when the storage closes
LONG: Final = 60.0  # s for a pop: some systems wait for messages


class Wakeup(Struct, frozen=True):
    job: str
    queue: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Wakeup).decode


class Wakeups:
    """The bells of one process. Nothing here raises: a bell that cannot be rung or popped is found missing by polling.

    row    the row of a job as this process knows it
    speak  wakes who waits for a queue in this process
    now    the storage's clock
    """

    def __init__(
        self,
        queue: Port,
        row: Callable[[str], Record | None],
        speak: Callable[[Iterable[str]], None],
        now: Callable[[], float],
    ) -> None:
        self._queue, self._row, self._speak, self._now = queue, row, speak, now
        self._tasks: frozenset[str] | None = frozenset()  # those that are run here; None: any
        self._queues: frozenset[str] = frozenset()
        self._owed = 0  # jobs were taken, their bells not yet
        self._acked = 0
        self._kept: list[Pulled] = []  # popped; their jobs are still in line
        self._work: set[asyncio.Task[None]] = set()
        self._popping: asyncio.Task[None] | None = None

    # --- ringing

    def ring(self, called: Mapping[str, float | None]) -> None:
        """Push a bell for each job; with a moment, for then."""
        if called:
            self._start(functools.partial(self._ring, dict(called)))

    async def _ring(self, called: Mapping[str, float | None]) -> None:
        async def push(job: str) -> None:
            row = self._row(job)
            body = _encode(Wakeup(job, row.job.queue if row is not None else "")).decode()
            await self._queue(self._queue.port.push, body, delay=self._delay(called[job]))

        await _each(called, push)

    def _delay(self, due: float | None) -> float:
        """As long as the queue can: it bounces until its moment has come."""
        delay = max(0.0, due - self._now()) if due is not None else 0.0
        most = self._queue.bound("max_delay")
        return delay if most is None else min(delay, most)

    # --- popping

    def serve(self, queues: Iterable[str], tasks: Iterable[str] | None) -> None:
        """Somebody here asks for jobs of these queues and tasks."""
        self._queues, self._tasks = frozenset(queues), None if tasks is None else frozenset(tasks)

    def took(self, jobs: int) -> None:
        """So many jobs were taken: as many bells are done with."""
        if jobs:
            self._owed += jobs
            self.listen()

    def listen(self) -> None:
        """Look once who rang."""
        if self._popping is None or self._popping.done():
            self._popping = self._start(self._take)

    async def _take(self) -> None:
        """Once; again while bells are owed, and while all that is found is left from jobs that are gone."""
        while True:
            while self._owed and self._kept:
                await self._done(self._kept.pop())
            owed = self._owed
            pulled: list[Pulled] = await self._queue(self._queue.port.pop, max(owed, BATCH), LEASE, patience=LONG)
            if not pulled:
                self._owed = max(0, self._owed - owed)  # they lie with somebody else, or were never rung
                return
            before = self._acked
            await _each(pulled, self._heard)
            if not self._owed and self._acked - before < len(pulled):
                return

    async def _heard(self, pulled: Pulled) -> None:
        try:
            wakeup = _decode(pulled.body)
        except UNREADABLE as error:
            log.warning("a message in the queue is no bell of ours, it was set aside: %s", error)
            await self._queue(self._queue.port.dead_letter, pulled.handle, f"expected a bell with a job's id: {error}")
            return
        row = self._row(wakeup.job)
        if row is None or row.state is not State.READY:
            await self._done(pulled)
        elif row.place is None and row.parked is None:
            await self._queue(self._queue.port.release, pulled.handle, self._delay(row.due_at))
        elif row.job.queue not in self._queues or (self._tasks is not None and row.job.task not in self._tasks):
            await self._queue(self._queue.port.release, pulled.handle, AWAY)
        elif self._owed:
            await self._done(pulled)
        else:
            self._kept.append(pulled)
            del self._kept[:-BATCH]  # the others come back when their leases run out
            self._speak([f"queue:{row.job.queue}"])

    async def _done(self, pulled: Pulled) -> None:
        self._owed, self._acked = max(0, self._owed - 1), self._acked + 1
        await self._queue(self._queue.port.ack, pulled.handle)

    # --- beside everything else

    def _start(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(_quietly(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def abandon(self) -> None:
        """Stop at once."""
        work = here(self._work)
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work)

    async def close(self) -> None:
        """Stop, once what is on its way is done; give back what was popped and is not needed."""
        if work := here(self._work):
            await asyncio.wait(work, timeout=GRACE)
        await self.abandon()
        kept, self._kept, self._owed = self._kept, [], 0

        async def give_back(pulled: Pulled) -> None:
            await self._queue(self._queue.port.release, pulled.handle)

        await _each(kept, give_back)


async def _each(items: Iterable[T], call: Callable[[T], Awaitable[None]]) -> None:
    """All of them, a few at a time, whatever becomes of the others."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            with suppress(StorageError):
                await call(item)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except StorageError as error:
        log.debug("bells: %s", error)
