"""One transaction for all requests that are made in one turn of the loop.

Statements run on the loop's thread: the sqlite3 module drops the GIL at every row, and next to a busy loop a thread
may not get it back for seconds. A thread does only work that waits: a taken lock, the COMMIT when it syncs and the disk
is slow, checkpoints, searches. If the loop is blocked in the middle of a transaction, that thread runs the rest of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from treadle.concurrency.spawn import begin as begin_task
from treadle.concurrency.spawn import started
from treadle.concurrency.threads import let_threads_start, starting
from treadle.core.errors import Locked, StorageUnavailable
from treadle.storage.row_rules import REFUSALS
from treadle.storage.sqlite.connection import OpenFile
from treadle.storage.sqlite.counts import Changes
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.lockfile import LockFile, begin, begin_patiently
from treadle.storage.sqlite.recent_leases import RecentLeases
from treadle.storage.sqlite.threads import Relay, Steps
from treadle.storage.sqlite.unit_of_work import UnitOfWork

T = TypeVar("T")

TURN: Final = 256  # jobs' worth of requests in one transaction
HELD: Final = 0.0025  # seconds of statements after which the loop gets a turn between two requests
LARGE: Final = 2_048  # jobs in one transaction after which even a COMMIT that does not sync takes long
ROWS: Final = 4  # rows that storing a job writes, at least
_OVER: Final[Any] = object()

FEW: Final = 32  # jobs' worth of a request that may be served in the turn of its call
AT_ONCE: Final = 0.001  # s of such requests after which the loop gets its turn
CROWD: Final = 32  # requests that are grouped after two came in one turn

MAX_JOBS: Final = 32  # jobs in a transaction that the loop commits itself; with more, a thread does
FAST: Final = 0.000_5  # seconds that a fast commit may take
WARMUP: Final = 20  # consecutive fast commits before the loop makes them
BACKOFF: Final = 500  # the same after a commit that held the loop for longer than FAST


class Request(Struct, eq=False):
    """A call: its steps within a transaction, and the future of its caller."""

    run: Callable[[UnitOfWork], Steps[Any]]
    weight: int
    future: asyncio.Future[Any]
    jobs: Sequence[Any] | None


class SingleCaller:
    """Detects whether one task makes all requests, one after the other. A single caller is served at once, in its turn
    of the loop: a task for every request would cost three turns, each as much as a statement (90,000 instructions of
    the 300,000 of a lone enqueue). Several callers wait for the end of the turn and share a transaction: 100 of them at
    five times the rate."""

    def __init__(self) -> None:
        self._last = 0  # the task that made the last request
        self._is_served = False  # whether a request was served at once in this turn
        self._since = 0.0  # when the first request of this turn was made
        self._crowd = 0

    def collide(self) -> None:
        """Two requests came in the same turn: group requests for a while. Otherwise the first request of each turn
        would be served alone."""
        self._crowd = CROWD

    def is_alone(self, loop: asyncio.AbstractEventLoop, weight: int) -> bool:
        """Whether this request may be served at once. Not the first one of another task with many jobs: that is a batch
        that several callers share already."""
        me, last = id(asyncio.current_task(loop)), self._last
        self._last = me
        if me != last and (self._is_served or weight > 1):
            self.collide()
        if self._crowd:
            self._crowd -= 1
            return False
        if not self._is_served:
            self._is_served, self._since = True, time.perf_counter()
            loop.call_soon(self._next_turn)
        return weight <= FEW and time.perf_counter() - self._since < AT_ONCE

    def _next_turn(self) -> None:
        self._is_served = False


class CommitLatency:
    """Measures commits that sync, and decides whether the loop may make the next one itself. A commit in a thread costs
    two hand-overs between threads, which is more than the sync of a fast disk. After one slow commit the disk is not
    trusted for a while, so as not to hold the loop.

    most  the jobs that the loop may commit itself; -1 while the disk is not trusted
    """

    def __init__(self) -> None:
        self._fast_needed, self.most = WARMUP, -1

    def took(self, seconds: float, held: bool) -> None:
        """Note the duration of a commit. `held`: the loop made it."""
        if seconds < FAST:
            self._fast_needed -= 1
        else:
            self._fast_needed = BACKOFF if held else max(self._fast_needed, WARMUP)
        self.most = MAX_JOBS if self._fast_needed <= 0 else -1


class SharedTransactions:
    """The requests that wait for the next transaction, and the transactions, one after the other.

    merge      the steps that store the plain jobs of several callers
    publish  is called with the topics of each transaction
    """

    def __init__(
        self,
        file: OpenFile,
        merge: Callable[[UnitOfWork, Sequence[Any]], Steps[Any]],
        publish: Callable[[set[str]], None],
    ) -> None:
        self._file, self._merge, self._publish = file, merge, publish
        self._pending: deque[Request] = deque()
        self._syncs = CommitLatency()
        self._leases = RecentLeases()
        self._callers = SingleCaller()

    def submit(
        self, run: Callable[[UnitOfWork], Steps[T]], weight: int = 1, jobs: Sequence[Any] | None = None
    ) -> asyncio.Future[T]:
        """Run this call in the next transaction. With `jobs`, neighbouring calls of the same kind are merged into one
        insert. For a single caller the call is done when this returns, unless it needs a thread."""
        self._file.check_process()
        loop = self._file.loop
        assert loop is not None
        if self._file.closing:
            raise StorageUnavailable(f"{self._file.path} is being closed")
        future: asyncio.Future[T] = loop.create_future()
        self._pending.append(Request(run, weight, future, jobs))
        if self._file.task is not None:
            self._callers.collide()
        elif self._callers.is_alone(loop, weight):
            self._file.task = begin_task(loop, self._work())
        else:
            self._file.task = started(self._work(), loop=loop)
        return future

    # --- one transaction after the other

    async def _work(self) -> None:
        pending = self._pending
        group: list[Request] = []
        try:
            while pending:
                group, weight = [], 0  # the requests that are not cancelled, up to the work of one turn
                while pending and (not group or weight + pending[0].weight <= TURN):
                    request = pending.popleft()
                    if not request.future.cancelled():
                        group.append(request)
                        weight += request.weight
                if group:
                    await self._transaction(group, weight)
                if pending:
                    await asyncio.sleep(0)
        except BaseException as error:
            interrupted = StorageUnavailable(f"{self._file.path}: the transaction was interrupted ({error!r})")
            for request in group:
                _fail(request, interrupted)
            raise
        finally:
            self._file.task = None
            if self._pending and self._file.loop is not None and not self._file.loop.is_closed():
                self._file.task = started(self._work(), loop=self._file.loop)

    async def _transaction(self, group: list[Request], weight: int) -> None:
        """Run all requests in one transaction; if that fails, run each in a transaction of its own. If it could not
        begin in time, all have waited: one by one, each would wait as long for every call before it."""
        file, topics, answers = self._file, set[str](), list[Any]()
        assert file.loop is not None
        try:
            if file.checkpoints.is_behind:
                await file.checkpoints.finish()
            steps = self._steps(group, weight, topics, answers)
            wanted = next(steps, _OVER)
            if wanted is not _OVER:
                await Relay(file.loop, steps, wanted, file.standby).run()
            file.confirm()
            file.checkpoints.count(file.loop)
        except Exception as error:
            if len(group) == 1 or isinstance(error, Locked):
                for request in group:
                    _fail(request, copy.copy(error) if isinstance(error, Locked) else translated(error, file.path))
                return
        else:
            for request, answer in zip(group, answers):  # noqa: B905 (one for each; `strict` costs 0.1 us)
                if isinstance(answer, Exception):
                    _fail(request, answer)
                elif not request.future.done():
                    request.future.set_result(answer)
            self._publish(topics)
            return
        for request in group:
            if not request.future.cancelled():
                await self._transaction([request], request.weight)

    def _steps(self, group: list[Request], weight: int, topics: set[str], answers: list[Any]) -> Steps[None]:
        """Run the transaction and fill `answers`. No step needs the loop, which may be blocked after each `yield`."""
        lock, db = self._file.lock, self._file.db
        if lock is None or self._file.unwritable:
            raise self._file.denied()
        if starting:
            let_threads_start()
        try:
            if not ((lock.try_lock() or lock.is_stuck) and begin(db)):
                yield partial(begin_patiently, lock, db)  # another program, such as a shell, is writing
            before = db.total_changes
            counts = Changes()
            answers += yield from self._answers(group, topics, counts)
            counts.write(db)
            written = db.total_changes - before
            weight = max(weight, written // ROWS)  # one ending may release a million jobs
            syncs = self._file.synchronous == "full" and written > 0
            inline = weight <= (self._syncs.most if syncs else LARGE)
            took = self._commit(lock) if inline else (yield partial(self._commit, lock))
            if syncs:
                self._syncs.took(took, inline)
        except BaseException:
            self._leases.forget()  # rows stored in the same transaction are gone, and so are their numbers
            with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back by itself; the next BEGIN shows it
                if db.in_transaction:
                    db.execute("ROLLBACK")
            raise
        finally:
            if lock.is_held:
                lock.unlock()

    def _answers(self, group: list[Request], topics: set[str], counts: Changes) -> Steps[list[Any]]:
        """Run the steps of all calls. Between two steps the loop gets a turn; a function that a step yields runs in a
        thread."""
        answers: list[Any] = []
        start, begun = 0, time.perf_counter()
        while start < len(group):
            request, end = group[start], start + 1
            if request.jobs is not None:
                while end < len(group) and group[end].jobs is not None:
                    end += 1
            if start and time.perf_counter() - begun > HELD:
                yield None
                begun = time.perf_counter()
            unit = UnitOfWork(self._file.db, self._file.now(), topics, counts, self._leases)
            alone = end - start == 1
            steps = (
                request.run(unit) if alone else self._merge(unit, [merged.jobs or () for merged in group[start:end]])
            )
            try:
                answer = yield from steps
                answers += [answer] if alone else answer
            except REFUSALS as refused:  # raised before anything was written
                if not alone:
                    raise
                answers.append(refused)
            start = end
        return answers

    def _commit(self, lock: LockFile) -> float:
        """Commit, and release the lock in this thread: the loop may be blocked. Return how many seconds it took."""
        begun = time.perf_counter()
        self._file.db.execute("COMMIT")
        lock.unlock()
        return time.perf_counter() - begun


def _fail(request: Request, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)
