"""One transaction for all requests that are made in one turn of the loop.

Statements run on the loop's thread: the sqlite3 module drops the GIL at every row, and next to a busy loop a thread
may not get it back for seconds. A thread does only work that waits: a taken lock, the COMMIT when it syncs and the disk
is slow, checkpoints, searches.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from treadle.concurrency.spawn import begin, started
from treadle.core import clock
from treadle.errors import StorageUnavailable
from treadle.storage.row_rules import REFUSALS
from treadle.storage.sqlite.commit_latency import CommitLatency
from treadle.storage.sqlite.connection import OpenFile
from treadle.storage.sqlite.counts import Changes
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.lockfile import WAIT, LockFile, held, patiently
from treadle.storage.sqlite.recent_leases import RecentLeases
from treadle.storage.sqlite.single_caller import SingleCaller
from treadle.storage.sqlite.unit_of_work import UnitOfWork

TURN: Final = 256  # jobs' worth of requests in one transaction
HELD: Final = 0.0025  # seconds of statements after which the loop gets a turn between two requests
LARGE: Final = 2_048  # jobs in one transaction after which even a COMMIT that does not sync takes long
ROWS: Final = 4  # rows that storing a job writes, at least
PAUSE: Final = 0.002  # seconds between two attempts to begin a transaction

Steps = Generator[Any, Any, Any]


class Request:
    """A call: its steps within a transaction, and the future of its caller."""

    __slots__ = ("future", "jobs", "run", "weight")

    def __init__(
        self, run: Callable[[UnitOfWork], Steps], weight: int, future: asyncio.Future[Any], jobs: Sequence[Any] | None
    ) -> None:
        self.run, self.weight, self.future, self.jobs = run, weight, future, jobs


class SharedTransactions:
    """The requests that wait for the next transaction, and the transactions, one after the other.

    merge      the steps that store the plain jobs of several callers
    committed  is called with the topics of each transaction
    """

    def __init__(
        self,
        file: OpenFile,
        merge: Callable[[UnitOfWork, Sequence[Any]], Steps],
        committed: Callable[[set[str]], None],
    ) -> None:
        self._file, self._merge, self._committed = file, merge, committed
        self._pending: deque[Request] = deque()
        self._syncs = CommitLatency()
        self._leases = RecentLeases()
        self._callers = SingleCaller()

    def submit(
        self, run: Callable[[UnitOfWork], Steps], weight: int = 1, jobs: Sequence[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Run this call in the next transaction. With `jobs`, neighbouring calls of the same kind are merged into one
        insert. For a single caller the call is done when this returns, unless it needs a thread."""
        self._file.check_process()
        loop = self._file.loop
        assert loop is not None
        if self._file.closing:
            raise StorageUnavailable(f"{self._file.path} is being closed")
        future: asyncio.Future[Any] = loop.create_future()
        self._pending.append(Request(run, weight, future, jobs))
        if self._file.task is not None:
            self._callers.met()
        elif self._callers.is_alone(loop, weight):
            self._file.task = begin(loop, self._work())
        else:
            self._file.task = started(self._work(), loop=loop)
        return future

    def foreign_version(self) -> int | None:
        """A number that changes when another process commits; None while a transaction of this object is in
        progress."""
        if self._file.task is not None or self._file.loop is None:
            return None
        try:
            number: int = self._file.db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return number

    # --- one transaction after the other

    async def _work(self) -> None:
        waiting: list[Request] = []
        try:
            while self._pending:
                waiting, weight = self._group()
                if waiting:
                    await self._transaction(waiting, weight)
                if self._pending:
                    await asyncio.sleep(0)
        except BaseException as error:
            told = StorageUnavailable(f"{self._file.path}: the transaction was interrupted ({error!r})")
            for request in waiting:
                _fail(request, told)
            raise
        finally:
            self._file.task = None
            if self._pending and self._file.loop is not None and not self._file.loop.is_closed():
                self._file.task = started(self._work(), loop=self._file.loop)

    def _group(self) -> tuple[list[Request], int]:
        """The requests of the next transaction that are not cancelled, up to the work of one turn; and that work."""
        pending, group, weight = self._pending, list[Request](), 0
        while pending and (not group or weight + pending[0].weight <= TURN):
            request = pending.popleft()
            if not request.future.cancelled():
                group.append(request)
                weight += request.weight
        return group, weight

    async def _transaction(self, group: list[Request], weight: int) -> None:
        """All of them in one transaction; if that fails, each in one of its own."""
        topics: set[str] = set()
        try:
            answers = await self._run(group, weight, topics)
        except Exception as error:
            if len(group) == 1:
                _fail(group[0], translated(error, self._file.path))
                return
        else:
            for request, answer in zip(group, answers):  # noqa: B905 (one for each; `strict` costs 0.1 us)
                if isinstance(answer, Exception):
                    _fail(request, answer)
                elif not request.future.done():
                    request.future.set_result(answer)
            self._committed(topics)
            return
        for request in group:
            if not request.future.cancelled():
                await self._transaction([request], request.weight)

    async def _run(self, group: list[Request], weight: int, topics: set[str]) -> list[Any]:
        lock = self._file.lock
        if lock is None or self._file.unwritable:
            self._file.check_writable()
        assert lock is not None
        if self._file.checkpoints.is_behind:
            await self._file.checkpoints.finish()
        if not lock.try_lock():
            await self._wait_for(lock)
        try:
            try:
                self._file.db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                await self._file.in_thread(self._begin_patiently)  # for example a shell that writes
            before = self._file.db.total_changes
            counts = Changes()
            answers = await self._answers(group, topics, counts)
            counts.write(self._file.db)
            # one ending may release a million jobs
            weight = max(weight, (self._file.db.total_changes - before) // ROWS)
            if self._file.synchronous == "full":
                await self._sync(weight)
            elif weight > LARGE:
                await self._file.in_thread(self._commit)
            else:
                self._commit()
        except BaseException:
            self._leases.forget()  # rows stored in the same transaction are gone, and so are their numbers
            self._roll_back()
            raise
        finally:
            lock.unlock()
        self._file.checkpoints.count(self._file.loop)
        return answers

    async def _answers(self, group: list[Request], topics: set[str], counts: Changes) -> list[Any]:
        """Run the steps of all calls. Between two steps the loop gets a turn; a function that a step yields runs in a
        thread."""
        answers, at, begun = list[Any](), 0, time.perf_counter()
        while at < len(group):
            request, end = group[at], at + 1
            if request.jobs is not None:
                while end < len(group) and group[end].jobs is not None:
                    end += 1
            if at and time.perf_counter() - begun > HELD:
                await asyncio.sleep(0)
                begun = time.perf_counter()
            unit = UnitOfWork(self._file.db, self._file.now(), topics, counts, self._leases)
            alone = end - at == 1
            steps = request.run(unit) if alone else self._merge(unit, [each.jobs or () for each in group[at:end]])
            try:
                wanted = next(steps)
                while True:
                    wanted = steps.send(await self._between(wanted))
            except StopIteration as stop:
                answers += [stop.value] if alone else stop.value
            except REFUSALS as refused:  # raised before anything was written
                if not alone:
                    raise
                answers.append(refused)
            at = end
        return answers

    async def _between(self, wanted: Callable[[], Any] | None) -> Any:
        return await (asyncio.sleep(0) if wanted is None else self._file.in_thread(wanted))

    async def _sync(self, weight: int) -> None:
        """Commit with a sync to disk: on the loop if commits are fast here, else in a thread."""
        if held := self._syncs.are_fast(weight):
            took = self._commit()
        else:
            took = await self._file.in_thread(self._commit)
        self._syncs.took(took, held)

    def _commit(self) -> float:
        """Commit. Return how many seconds it took."""
        begun = time.perf_counter()
        self._file.db.execute("COMMIT")
        return time.perf_counter() - begun

    def _roll_back(self) -> None:
        try:
            if self._file.db.in_transaction:
                self._file.db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite has rolled back by itself; the next BEGIN shows it

    def _begin_patiently(self) -> None:
        """Try every 2 ms: SQLite's own waiting sleeps up to 100 ms, and a process that tries more often would overtake
        it."""
        until = clock.monotonic() + WAIT
        while True:
            try:
                self._file.db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    async def _wait_for(self, lock: LockFile) -> None:
        """Wait for the lock in a thread. Release it if the caller is cancelled: the thread may have it by then."""
        got = False

        def wait() -> None:
            nonlocal got
            got = patiently(lock)

        try:
            await self._file.in_thread(wait)
        except BaseException:
            if got:
                lock.unlock()
            raise
        if not got:
            raise held(lock)


def _fail(request: Request, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)
