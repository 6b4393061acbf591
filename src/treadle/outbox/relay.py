"""Delivers the rows of an outbox to the storage of the jobs: read a page, enqueue it, delete it.

A relay may die between any two of these. The next one repeats the delivery, and the storage returns the jobs that it
has. Two relays at the same time only do the same work twice, so the lease saves work; correctness does not need it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from treadle.concurrency.spawn import started
from treadle.core.clock import monotonic
from treadle.core.command_lines import command
from treadle.core.errors import (
    UNREADABLE,
    Locked,
    QueueFull,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageMoved,
    StorageUnavailable,
    TreadleError,
    Unsupported,
    error_line,
)
from treadle.core.model import NewJob, Record
from treadle.outbox.drivers import Database, Row, checked_mark
from treadle.outbox.full_queues import FullQueues
from treadle.outbox.notices import Notices
from treadle.outbox.rows import Call, Waiting, aged, calls_of, job_of, read
from treadle.outbox.table import LEASE, Statements
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

PAGE: Final = 1_000  # rows of one delivery; larger pages gained nothing and block the storage for longer
RENEWALS: Final = 4  # times that the lease is renewed during a page
TRIES: Final = 10  # failed deliveries after which a row waits for an operator
FIRST: Final = 1.0  # s until the second try; each further pause is twice as long
LONGEST: Final = 300.0  # s of such a pause
FOLLOWED: Final = 3_600.0  # s for which the outbox remembers that another job was returned for one of its jobs
ERROR: Final = 2_000  # characters of an error that are kept
DENIED: Final = 3  # calls in a row, each sent alone, that must be denied until the storage counts as the cause
EACH: Final = "give each an outbox of its own: in another database, or on PostgreSQL with another schema="
PROBE: Final = "treadle:relay"  # the id of no job


class Relay:
    """The relay of one process.

    keep   s for which the row of a job stays at least: a repeated delivery must find it
    poll   s between two reads, if no notification arrives
    lease  s without a renewal after which another relay takes over
    place  the storage, as it is recorded next to the lease; None: it is not
    """

    def __init__(
        self,
        database: Database,
        statements: Statements,
        storage: Callable[[], Awaitable[Storage]],
        *,
        keep: float,
        poll: float,
        notify: bool = True,
        lease: float = LEASE,
        place: str | None = None,
    ) -> None:
        self._database, self._statements, self._storage = database, statements, storage
        self._keep, self._poll, self._lease = keep, poll, lease
        self.holder = f"{platform.node()}:{os.getpid()}:{os.urandom(3).hex()}"
        self._led_until = 0.0  # by this process's monotonic clock; 0: another relay leads
        self._may_hold = False  # the database may have given it the lease: the answer may be lost
        self._notices = Notices(database.address) if notify else None
        self._size = PAGE  # smaller after a page that the storage did not answer, while it answers other calls
        self._denied = 0
        self._place, self._warned = place, False
        self.delivered = 0  # jobs, since this relay was created

    # --- the loop

    async def run(self, answered: Callable[[], None] = lambda: None, wanted: Callable[[], bool] = lambda: True) -> None:
        """Relay until cancelled, while this process has the lease and is `wanted`. Raises StorageError; call it again
        after a pause."""
        try:
            while True:
                if not wanted() or not await self._leads():
                    answered()
                    await asyncio.sleep(self._lease / RENEWALS)
                    continue
                more = await self._pass(self._leads)
                answered()
                if not more:
                    await self._wait(wanted)
        finally:
            if self._notices is not None:
                await self._notices.close()
            await asyncio.shield(self._leave())

    async def _leads(self) -> bool:
        now = monotonic()
        if now < self._led_until - self._lease * (1 - 1 / RENEWALS):
            return True
        if not self._led_until:
            await self.check()
        self._may_hold = True  # until a refusal: the answer may be lost
        [(changed,)] = await self._database.run(self._statements.lead(self.holder, self._lease))
        self._may_hold = bool(changed)
        if not self._led_until:
            await self._compare_storage(leads=bool(changed))
        if changed and not self._led_until:
            log.info("the relay of %s is %s", self._database.address.shown, self.holder)
        self._led_until = now + self._lease if changed else 0.0
        return bool(changed)

    async def _compare_storage(self, leads: bool) -> None:
        """Warn once of a relay to another storage: an outbox is for one, and such jobs wait where no worker of their
        app looks. Two URLs may name one storage, so this is no error."""
        if self._place is None:
            return
        [(before,)] = await self._database.run(self._statements.storage())
        if before is not None and before != self._place and not self._warned:
            self._warned = True
            log.warning(
                "outbox: %s was relayed to %s, and the jobs of this app are in %s. If these are two storages, %s",
                self._database.address.shown,
                before,
                self._place,
                EACH,
            )
        if leads and before != self._place:
            await self._database.run(self._statements.delivers_to(self._place))

    async def _leave(self) -> None:
        """End the lease, so that no other relay waits for it."""
        if self._may_hold:
            self._led_until, self._may_hold = 0.0, False
            with suppress(StorageError):
                await self._database.run(self._statements.leave(self.holder))

    async def check(self) -> None:
        """Raise StorageError unless the tables are of a version that this Treadle knows."""
        checked_mark(await self._database.run(self._statements.mark()), self._database.address)

    async def _wait(self, wanted: Callable[[], bool]) -> None:
        """Wait for a notification or the next poll, and renew the lease meanwhile."""
        until = monotonic() + self._poll
        while (rest := until - monotonic()) > 0 and wanted() and await self._leads():
            part = min(rest, self._lease / RENEWALS)
            if self._notices is None:
                await asyncio.sleep(part)
            elif await self._notices.wait(part):
                return

    # --- the delivery

    async def everything(self) -> int:
        """Deliver all rows that are due; returns how many jobs were."""
        before = self.delivered
        await self.check()
        await self._compare_storage(leads=False)
        while await self._pass(_always):
            pass
        if self.delivered > before:
            await self._compare_storage(leads=True)
        return self.delivered - before

    async def deliver(self, ids: Sequence[str]) -> None:
        """Deliver the committed rows of these jobs that were never tried."""
        rows = await self._database.run(self._statements.of(ids))
        if rows:
            over, _ = await self._page([read(row) for row in rows], FullQueues())
            await self._delete(over)

    async def _pass(self, continues: Callable[[], Awaitable[bool]]) -> bool:
        """Deliver page after page, while `continues`. Returns whether there were any rows.

        While the storage works on one page, this process reads the next one and deletes the one before: without this
        overlap a page takes half as much time again on PostgreSQL.
        """
        size, full_queues = self._size, FullQueues()
        rows = [read(row) for row in await self._database.run(self._statements.page(size))]
        if not rows:
            return False
        full = len(rows) == size
        further: asyncio.Task[list[Row]] | None = None
        deleting: asyncio.Task[None] | None = None
        try:
            while rows:
                if full and await continues():
                    further = started(self._database.run(self._statements.further(rows[-1].seq, size)))
                over, done = await self._page(rows, full_queues)
                if deleting is not None:
                    await deleting
                deleting = started(self._delete(over))
                # The end of a call that the last page began was delivered with it.
                page = [] if further is None else await further
                full, further = len(page) == size, None
                rows = [read(row) for row in page if row[0] not in done]
            if deleting is not None:
                await deleting
            return True
        finally:
            await _ended(further, deleting)

    async def _delete(self, seqs: Sequence[int]) -> None:
        if seqs:
            await self._database.run(self._statements.delete(seqs))

    async def _page(self, rows: list[Waiting], full: FullQueues) -> tuple[list[int], set[int]]:
        """Deliver these rows, and the others of their calls. Returns the numbers of those to delete, and of all."""
        over = [row.seq for row in rows if row.became is not None]  # rows kept only as a reference, whose time is over
        rows = await self._with_calls([row for row in rows if row.became is None])
        done = {row.seq for row in rows}
        storage = await self._storage()
        over += await self._calls(storage, calls_of(rows), full)
        for error, calls in full.take():
            over += await self._wait_for_room(storage, calls, error)
        return over, done

    async def _with_calls(self, rows: list[Waiting]) -> list[Waiting]:
        """These rows, and the other rows of their calls, which may be on another page."""
        calls = list(dict.fromkeys(row.call for row in rows if row.call is not None))
        if not calls:
            return rows
        more: list[Row] = await self._database.run(self._statements.calls(calls))
        known = {row.seq for row in rows}
        return sorted(
            [*rows, *(waiting for row in more if (waiting := read(row)).seq not in known)], key=lambda row: row.seq
        )

    async def _calls(self, storage: Storage, calls: list[Call], full: FullQueues) -> list[int]:
        """Deliver these calls in one step; if one of them is refused, by halves. Returns the rows that are done."""
        calls = full.to_try(calls)
        if not calls:
            return []
        try:
            jobs = [aged(job_of(row.text), row.age, self._keep) for call in calls for row in call]
            stored = await storage.enqueue(jobs)
        except (StorageFull, StorageMoved):
            raise
        except (StorageDenied, Unsupported) as error:
            await storage.get([PROBE])  # raises if it denies everything; else these rows may be the cause
            if len(calls) > 1:
                return await self._refused(storage, calls, error, full)
            await self._failed(calls[0], error, for_ever=True)
            self._denied += 1
            if self._denied >= DENIED:
                raise
            return []
        except StorageUnavailable as error:
            await storage.get([PROBE])  # raises if the storage is away; else these rows may be the cause
            if len(calls) == 1:
                await self._failed(calls[0], error, for_ever=True)
            self._size = max(1, self._size // 2)
            raise
        except Locked as error:
            return await self._without_locked(storage, calls, error, full)
        except (TreadleError, *UNREADABLE) as error:
            return await self._refused(storage, calls, error, full)
        self._denied = 0
        self.delivered += len(jobs)
        self._size = min(PAGE, 2 * self._size)
        return await self._done([row for call in calls for row in call], jobs, stored)

    async def _without_locked(self, storage: Storage, calls: list[Call], error: Locked, full: FullQueues) -> list[int]:
        """Deliver the calls that no other transaction holds up."""
        held = [call for call in calls if any((job := _job(row)) and job.id in error.jobs for row in call)] or calls
        if held == calls and len(calls) > 1:
            return await self._refused(storage, calls, error, full)
        for call in held:
            await self._failed(call, error, for_ever=True)
        return await self._calls(storage, [call for call in calls if call not in held], full)

    async def _refused(self, storage: Storage, calls: list[Call], error: Exception, full: FullQueues) -> list[int]:
        if len(calls) > 1:
            middle = len(calls) // 2
            over = await self._calls(storage, calls[:middle], full)
            return over + await self._calls(storage, calls[middle:], full)
        # A full queue gets room again, unless the call has more jobs than the queue ever takes.
        if isinstance(error, QueueFull) and error.asked <= error.max_waiting:
            full.refuse(calls[0], error)
        else:
            await self._failed(calls[0], error)
        return []

    async def _wait_for_room(self, storage: Storage, calls: list[Call], error: QueueFull) -> list[int]:
        """Record that these calls wait for a full queue: one statement and one log line. Returns the rows of jobs that
        the storage already has: a relay died before it deleted them."""
        known = await storage.get([job.id if (job := _job(call[0])) else PROBE for call in calls])
        stored = [call for call, row in zip(calls, known, strict=True) if row is not None]
        over = await self._calls(storage, stored, FullQueues())
        waiting = [call for call, row in zip(calls, known, strict=True) if row is None]
        if waiting:
            # The pause of the call with the fewest tries, because an older call must not wait longer than a younger
            # one.
            delay = _pause(min(call[0].tries for call in waiting) + 1)
            rows = [row.seq for call in waiting for row in call]
            await self._database.run(self._statements.failed(rows, _words(error), delay))
            jobs = "1 job waits" if len(rows) == 1 else f"{len(rows):,} jobs wait"
            log.warning("outbox: %s in the outbox (%s), again in %g s", jobs, _words(error), delay)
        return over

    async def _failed(self, call: Call, error: Exception, for_ever: bool = False) -> None:
        """Record a failed try. `for_ever`: it is never given up, because its jobs are not the cause."""
        tries = call[0].tries + 1
        given_up = tries >= TRIES and not for_ever
        delay, text = None if given_up else _pause(tries), _words(error)
        await self._database.run(self._statements.failed([row.seq for row in call], text, delay))
        again = f"given up; {command('storage', 'relay', 'retry')} tries it again"
        after = again if delay is None else f"again in {delay:g} s"
        log.warning("outbox: %s cannot be delivered (%s), try %d, %s", _named(call[0]), text, tries, after)

    async def _done(self, rows: Sequence[Waiting], jobs: Sequence[NewJob], stored: Sequence[Record]) -> list[int]:
        """The rows to be deleted. A row for which the storage returned another job stays for a while, as a reference to
        that job."""
        over = []
        for row, job, record in zip(rows, jobs, stored, strict=True):
            if record.job.id == job.id:
                over.append(row.seq)
            else:
                await self._database.run(self._statements.became(row.seq, record.job.id, FOLLOWED))
        return over


def _pause(tries: int) -> float:
    """The seconds until the next try, after `tries` failed ones."""
    return min(FIRST * 2.0 ** min(tries - 1, 30), LONGEST)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error_line(str(error)) or 'no details'}"[:ERROR]


def _job(row: Waiting) -> NewJob | None:
    """The job of a row; None: it cannot be read."""
    with suppress(*UNREADABLE):
        return job_of(row.text)
    return None


def _named(row: Waiting) -> str:
    """The job of a row, for the log."""
    job = _job(row)
    return f"row {row.seq}" if job is None else f"job {job.id}"


async def _always() -> bool:
    return True


async def _ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Wait for the statements that have begun: they cannot be cancelled in their thread."""
    running = [task for task in tasks if task is not None and not task.done()]
    if running:
        await asyncio.wait(running)
    for task in tasks:
        if task is not None and not task.cancelled():
            task.exception()  # the next pass reads it again
