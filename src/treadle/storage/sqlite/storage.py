"""The methods of the contract on a SQLite file: durable jobs without a server.

Each method becomes steps within a transaction (shared_transaction.py) that all callers of one turn of the loop share.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from treadle.core import clock, defaults
from treadle.core.errors import BadUrl
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.storage.contract import Capabilities
from treadle.storage.optional_parts import Risk
from treadle.storage.sqlite import metrics, queries, recount, transfer
from treadle.storage.sqlite.connection import OpenFile
from treadle.storage.sqlite.enqueue import add_merged, add_plain, enqueue
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.handoff import Inbox, Mailbox, Mailboxes
from treadle.storage.sqlite.limits import set_limits
from treadle.storage.sqlite.notifier import Notifier
from treadle.storage.sqlite.prune import prune
from treadle.storage.sqlite.risks import risks_of_file
from treadle.storage.sqlite.rows import is_plain
from treadle.storage.sqlite.run_transaction import RunTransaction
from treadle.storage.sqlite.search import Search
from treadle.storage.sqlite.settle import heartbeat, settle
from treadle.storage.sqlite.shared_transaction import SharedTransactions
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.storage.sqlite.user_transaction import Known, UserTransaction
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import Carried, Chunk, MoveState
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    check_rows,
    guarded_settle,
    guarded_settle_claim,
)

P = ParamSpec("P")
T = TypeVar("T")

INLINE = 128  # rows read on the loop at once: about 1 ms


class SqliteStorage:
    """Jobs in one file, shared by any number of processes of one machine.

    path            the file; created if it does not exist, but its folder must exist
    now             the clock, seconds since 1970
    synchronous     "full": an answer means that the disk has it. "normal": it survives a crash of the process; a power
                    failure may lose the last moments. "off": for tests
    shared          the file may have other tables too, for transactions that span yours and ours
    """

    capabilities = Capabilities(
        settle_claim=True,
        hand_off=True,
        transactions=True,
        movable=True,
        marks=True,
        risks=True,
        single_caller=True,
        scan=defaults.SCAN_FAST,
    )

    def __init__(
        self, path: str, *, now: clock.Clock = clock.wall, synchronous: str = "full", shared: bool = False
    ) -> None:
        if synchronous not in ("full", "normal", "off"):
            raise BadUrl(f"synchronous: expected full, normal or off, found {synchronous!r}")
        self._now, self._synchronous = now, synchronous
        self._turn = asyncio.Lock()  # held by the one run that has a transaction of its own here
        self._waiters = TopicWaiters()
        self._file = OpenFile(path, now, synchronous, shared)
        self._known = Known(self._file.path, shared)
        self._limit = ""  # the key of the last limit that prune checked
        self._inbox = Inbox(self._file)
        self._notifier = Notifier(self._file.path, self._waiters, self._file.foreign_version, self._inbox.deliver)
        self._calls = SharedTransactions(self._file, add_merged, self._notifier.publish)
        self._mailboxes = Mailboxes(self._file, self._calls, self._notifier, self._inbox)

    @property
    def path(self) -> str:
        """The file, absolute."""
        return self._file.path

    async def open(self, look: bool = False) -> None:
        """Create or check the file. Raises NotADatabase, SchemaTooNew, StorageUnavailable, StorageFull; with `look`
        SchemaTooOld."""
        await self._file.open(look)
        self.capabilities = replace(type(self).capabilities, read_only=self._file.unwritable)
        self._known.is_made = True
        self._notifier.start()

    async def close(self) -> None:
        """Finish the calls in progress, write the log back, and close the file."""
        self._notifier.stop_receiving()
        try:
            await self._file.close()
        finally:
            self._notifier.close()

    # --- the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        plain = all(map(is_plain, jobs))
        check_jobs(jobs, plain)
        insert = partial(add_plain if plain else enqueue, jobs=jobs)
        if len(jobs) == 1:
            insert = partial(self._insert_one, insert=insert)
        return await self._calls.submit(insert, len(jobs), jobs if plain else None)

    def _insert_one(
        self, unit: UnitOfWork, insert: Callable[[UnitOfWork], Generator[None, None, list[Record]]]
    ) -> Generator[None, None, list[Record]]:
        """Insert one job, and claim it for a worker that waits for one."""
        waiting = self._file.waiting_workers.all()
        if not waiting:
            return insert(unit)
        return self._mailboxes.insert_and_hand_over(unit, insert, waiting)

    async def claim(self, ask: Claim) -> Claimed:
        check_ask(ask)
        while True:  # each step is a transaction; others run in between
            claimed = await self._calls.submit(lambda unit: self._mailboxes.claim(unit, ask), ask.limit)
            if claimed is not None:
                return claimed

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        check_beat(worker, renewals, lease)
        return await self._calls.submit(lambda unit: heartbeat(unit, worker, renewals, lease), 1 + len(renewals))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        return await self._calls.submit(partial(settle, outcomes=outcomes), len(outcomes))

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Both in one transaction."""
        work = max(len(outcomes), ask.limit)
        both = self._calls.submit(lambda unit: _settle_claim(unit, outcomes, ask, self._mailboxes), work)
        settled, claimed = await both
        return settled, claimed if claimed is not None else await self.claim(ask)

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        self._file.check_process()
        rows: list[Record | None] = []
        for start in range(0, len(ids), INLINE):
            if start:
                await asyncio.sleep(0)
            rows += self._read(queries.by_ids, ids[start : start + INLINE])
        return rows

    async def find(self, query: Query) -> Page:
        page = await self._search(Search(query).run)
        rows = list[Record]()
        for start in range(0, len(page.seqs), INLINE):
            if start:
                await asyncio.sleep(0)
            rows += self._read(queries.by_seqs, page.seqs[start : start + INLINE], query.whole)
        return Page(tuple(rows), page.cursor, page.total, page.scanned, page.scanned_to if query.scan else None)

    async def stats(self) -> Stats:
        now = self._now()
        return await self._search(lambda db: queries.stats(db, now))

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        while True:
            drifted, repairs = await self._search(recount.compare)
            repaired = partial(recount.repair, drifted=drifted, repairs=repairs)
            if not (repair and drifted) or await self._calls.submit(repaired):
                return drifted

    async def glance(self, most: int = 10_000) -> Glance:
        now = self._now()
        return await self._search(lambda db: queries.glance(db, now, most))

    def _read(self, read: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **options: P.kwargs) -> T:
        """A short read on the loop. Raises StorageUnavailable if the file was closed, also since the call began."""
        self._file.check_process()
        try:
            return read(self._file.look, *args, **options)
        except Exception as error:
            raise translated(error, self.path) from error

    async def _search(self, read: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.in_search(read)
        except Exception as error:
            raise translated(error, self.path) from error

    # --- operating

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        if not use:
            return self._read(queries.limits)
        now = self._now()
        return await self._search(lambda db: queries.limits_now(db, now))

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        await self._calls.submit(lambda unit: set_limits(unit, changes), 1 + len(changes))

    async def prune(self, limit: int) -> int:
        went, self._limit = await self._calls.submit(lambda unit: prune(unit, limit, self._limit), limit)
        return went

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        check_rows(rows, remove)
        await self._calls.submit(lambda unit: metrics.store_metrics(unit, rows, remove), 1 + len(rows) + len(remove))

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        return self._read(metrics.read_metrics, since, until)

    async def risks(self) -> Sequence[Risk]:
        return await self._search(lambda db: tuple(risks_of_file(self.path, self._synchronous)))

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        self._file.check_process()
        with self._notifier.listening():
            return await self._waiters.wait(topics, timeout)

    def post(self, take: Callable[[str, Record], None]) -> Mailbox | None:
        """A hand-off address for a worker. None on Windows, where a process cannot tell whether its receiver still
        lives."""
        return self._mailboxes.open(take)

    # --- moves

    async def read_mark(self) -> MoveState | None:
        return self._read(transfer.read_mark)

    async def set_mark(self, mark: MoveState) -> None:
        await self._calls.submit(lambda unit: transfer.set_mark(unit, mark))

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        seqs, jobs = self._read(transfer.page, cursor, limit + 1), list[Carried]()
        head = self._read(transfer.first) if cursor is None else Chunk()
        for start in range(0, min(len(seqs), limit), INLINE):
            if start:
                await asyncio.sleep(0)
            jobs += self._read(transfer.jobs, seqs[start : min(start + INLINE, limit)])
        more = str(seqs[limit - 1]) if len(seqs) > limit else None
        return Chunk(tuple(jobs), head.rules, head.rates, more, head.metrics)

    async def load(self, load: Chunk, mark: MoveState) -> None:
        await self._calls.submit(lambda unit: transfer.load(unit, load, mark), max(1, len(load.jobs)))

    # --- inside a transaction

    def within(self, session: Any) -> UserTransaction:
        """The methods inside the user's own transaction on the same file. The storage need not be open: every statement
        runs on the user's connection."""
        return UserTransaction(session, self._known, self._now)

    async def begin(self, sync: bool) -> RunTransaction:
        """A transaction for one run, on a connection of its own. All other writes wait until it is over."""
        self._file.check_process()
        if self._file.lock is None or self._file.unwritable:
            raise self._file.denied()
        self._file.confirm()  # a connection that is opened now would open another log
        own = RunTransaction(self._known, self._synchronous, self._now, self._turn, self._joined)
        await own.begin()
        return own

    async def oldest_open(self) -> float:
        """Wait until the transactions that are open now have ended: each holds the write lock of the file."""
        await self._calls.submit(_nothing)
        return 0.0

    def _joined(self, topics: set[str]) -> None:
        self._file.confirm()
        self._file.checkpoints.count(self._file.loop)
        self._notifier.publish(topics)


def _settle_claim(
    unit: UnitOfWork, outcomes: Sequence[Outcome], ask: Claim, mailboxes: Mailboxes
) -> Generator[None, None, tuple[list[Settled], Claimed | None]]:
    settled = (yield from settle(unit, outcomes)) if outcomes else []
    if len(outcomes) > INLINE:
        yield  # settling for a full worker and its next claim each hold the loop for 1 to 3 ms
    unit = unit.again()
    if outcomes and unit.shut():
        return settled, Claimed()
    return settled, (yield from mailboxes.claim(unit, ask))


def _nothing(unit: UnitOfWork) -> Generator[None, None, None]:
    yield from ()
