"""The file at work: one transaction for all that is asked in one turn of the loop.

Without it each call would pay a transaction of its own, or wait for its disk on the loop. Statements run on the loop's
thread: the sqlite3 module drops the GIL at every row, and a thread beside a busy loop may not get it back for seconds
(measured). Only what waits goes to a thread: a taken lock, the COMMIT when it syncs and the disk is slow, checkpoints,
searches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from treadle.concurrency import forks
from treadle.concurrency.spawn import begin, started
from treadle.core import clock
from treadle.errors import StorageError, StorageFull, StorageUnavailable
from treadle.storage.row_rules import REFUSALS
from treadle.storage.sqlite.checkpoint import Checkpoints
from treadle.storage.sqlite.commit_latency import CommitLatency
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.lockfile import WAIT, LockFile, held, patiently
from treadle.storage.sqlite.opening import Opened, open_file
from treadle.storage.sqlite.recent_leases import RecentLeases
from treadle.storage.sqlite.single_caller import SingleCaller
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.storage.sqlite.waiting_workers import WaitingWorkers

TURN: Final = 256  # jobs' worth of requests in one transaction
HELD: Final = 0.0025  # s of statements after which the loop gets a turn between two requests
LARGE: Final = 2_048  # jobs in one transaction after which even a COMMIT that does not sync takes long
ROWS: Final = 4  # that storing a job writes, at least
NUDGE: Final = 0.005  # s after which a thread is helped to the GIL
PAUSE: Final = 0.002  # s between two tries to become the one who writes
LOOK: Final = 1.0  # s between two looks whether the path still names the file that is open: 3 us each

log = logging.getLogger("treadle.storage.sqlite")

Steps = Generator[Any, Any, Any]


class Request:
    """A call: its steps within a transaction, and the future of its caller."""

    __slots__ = ("future", "jobs", "run", "weight")

    def __init__(
        self, run: Callable[[UnitOfWork], Steps], weight: int, future: asyncio.Future[Any], jobs: Sequence[Any] | None
    ) -> None:
        self.run, self.weight, self.future, self.jobs = run, weight, future, jobs


class Database:
    """One writing connection, one for looking, and the requests that wait for the next transaction."""

    def __init__(
        self,
        path: str,
        now: clock.Clock,
        synchronous: str,
        merge: Callable[[UnitOfWork, Sequence[Any]], Steps],
        committed: Callable[[set[str]], None],
        shared: bool = False,
    ) -> None:
        self.named = os.path.abspath(path)
        self.path = os.path.realpath(path)  # one lock and one wake folder, by whatever link the file is named
        self.now = now
        self._synchronous, self._merge, self._committed, self._shared = synchronous, merge, committed, shared
        self._pending: deque[Request] = deque()
        self._syncs = CommitLatency()
        self._leases = RecentLeases()
        self._task: asyncio.Task[None] | None = None
        self._callers = SingleCaller()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._closed: asyncio.Task[None] | None = None  # while it is being closed
        self._unwritable = ""  # why nothing can be written here
        self._place: tuple[int, int] | None = None  # device and inode of the file that is open
        self._look_at = 0.0

    # --- opening and closing

    async def open(self) -> None:
        while self._closed is not None and self._closed.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._closed])  # or the one would close what the other opens
        if self._loop is not None:
            return
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(1, "treadle-sqlite")
        self._searches = ThreadPoolExecutor(1, "treadle-sqlite-look")
        loop = asyncio.get_running_loop()
        opening = self._threads.submit(lambda: open_file(self.path, self._synchronous, self.now, self._shared))
        try:
            opened = await asyncio.shield(asyncio.wrap_future(opening, loop=loop))
        except BaseException as error:
            opening.add_done_callback(_let_go)  # given up while the thread still opens it
            self._threads.shutdown(wait=False)
            self._searches.shutdown(wait=False)
            found = translated(error, self.path)
            if found is error:
                raise
            raise found from error
        self._db, self.look, self.search = opened.db, opened.look, opened.search
        self._lock, self._unwritable = opened.lock, opened.unwritable
        if self._lock is not None:
            self.asks = WaitingWorkers(self._lock)
        self._loop, self._closing = loop, False
        self._place, self._look_at = place_of(self.path), clock.monotonic() + LOOK
        self._checkpoints = Checkpoints(self.path, self._synchronous)

    async def close(self) -> None:
        """Where the caller is cancelled, closing goes on; the next `open` or `close` waits for it."""
        if self._closed is None:
            if self._loop is None:
                return
            self._check_owner()
            self._closing = True
            self._closed = started(self._finish(self._loop), loop=self._loop)
        await asyncio.shield(self._closed)

    async def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._task is not None:
                await asyncio.wait([self._task])
            await self._checkpoints.finish()
        finally:  # also where the event loop ends now
            self._loop = None
            try:
                await loop.run_in_executor(self._threads, self._close)
            finally:
                self._threads.shutdown(wait=False)
                self._searches.shutdown(wait=True)
                self._closed = None

    def _close(self) -> None:
        """The last connection to close writes a checkpoint, so the lock is held meanwhile."""
        self._searches.shutdown(wait=True, cancel_futures=True)  # a look whose caller went away may still read
        try:
            if place_of(self.named) == self._place:
                self._close_connections()
            else:  # SQLite would delete the log by its name, which is that of another database now, and in use
                for each in (self.search, self.look, self._checkpoints.db, self._db):
                    forks.leave(each)
        finally:
            self._checkpoints.close()
            if self._lock is not None:
                self._lock.close()

    def _close_connections(self) -> None:
        locked = self._lock is not None and patiently(self._lock)
        try:
            for each in (self.search, self.look, self._checkpoints.db, self._db):
                if each is not None:
                    each.close()
        finally:
            if locked and self._lock is not None:
                self._lock.unlock()

    def check_process(self) -> None:
        """Whether this process may use the file: it has opened it, and the file is still there."""
        self._check_owner()
        if clock.monotonic() > self._look_at:
            self._check_place()

    def _check_owner(self) -> None:
        if self._loop is None:
            raise StorageUnavailable(f"{self.path} is not open; call open() first")
        if os.getpid() != self._pid:
            raise StorageError(
                f"{self.path} was opened by process {self._pid}, this is its child {os.getpid()}: "
                "SQLite connections do not survive a fork; open a new storage in the child"
            )

    def _check_place(self) -> None:
        """Raise if the path names another file than the one that is open here: nobody else would see what we store.
        A lock file that was deleted is made anew; it holds nothing that must be kept."""
        if place_of(self.named) != self._place:
            raise StorageUnavailable(
                f"{self.named} was deleted, moved or replaced while this process had it open, so other processes "
                "do not see its changes: restart this process, or put the file back"
            )
        self._look_at = clock.monotonic() + LOOK
        if self._lock is not None and self._task is None and not self._lock.is_in_place():
            log.warning("%s was deleted while the database is in use; creating it again", self._lock.path)
            self._lock.reopen()

    def check_writable(self) -> None:
        self.check_process()
        if self._lock is None or self._unwritable:
            raise StorageFull(f"{self.path} is read-only for this process, nothing was stored: {self._unwritable}")

    def count_commit(self) -> None:
        """Somebody else's transaction has made the log longer."""
        self._checkpoints.count(self._loop)

    # --- asking

    def submit(
        self, run: Callable[[UnitOfWork], Steps], weight: int = 1, jobs: Sequence[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Do this in the next transaction. With `jobs`, neighbours of the same kind are merged into one insert. Where
        nobody else asks it is done, if it needs no thread, when this returns."""
        self.check_process()
        loop = self._loop
        assert loop is not None
        if self._closing:
            raise StorageUnavailable(f"{self.path} is being closed")
        future: asyncio.Future[Any] = loop.create_future()
        self._pending.append(Request(run, weight, future, jobs))
        if self._task is not None:
            self._callers.met()
        elif self._callers.is_alone(loop, weight):
            self._task = begin(loop, self._work())
        else:
            self._task = started(self._work(), loop=loop)
        return future

    def foreign_version(self) -> int | None:
        """A number that changes when somebody else commits; None while a transaction of ours is under way."""
        if self._task is not None or self._loop is None:
            return None
        try:
            number: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return number

    async def in_search(self, read: Callable[[sqlite3.Connection], Any]) -> Any:
        """A long look, in a thread, on a connection of its own. One row, or few: the thread pays for each."""
        self.check_process()
        assert self._loop is not None
        return await in_thread(self._loop, self._searches, lambda: read(self.search), finish=False)

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
        """A part of the transaction that waits."""
        assert self._loop is not None
        return await in_thread(self._loop, pool, call)

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
            told = StorageUnavailable(f"{self.path}: the transaction was interrupted ({error!r})")
            for request in waiting:
                _fail(request, told)
            raise
        finally:
            self._task = None
            if self._pending and self._loop is not None and not self._loop.is_closed():
                self._task = started(self._work(), loop=self._loop)

    def _group(self) -> tuple[list[Request], int]:
        """Who comes into the next transaction: those still wanted, until there is work for one turn; and how much."""
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
                _fail(group[0], translated(error, self.path))
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
        lock = self._lock
        if lock is None or self._unwritable:
            self.check_writable()
        assert lock is not None
        if self._checkpoints.is_behind:
            await self._checkpoints.finish()
        if not lock.try_lock():
            await self._wait_for(lock)
        try:
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                await self._in_thread(self._threads, self._begin_patiently)  # somebody's shell writes
            before = self._db.total_changes
            answers = await self._answers(group, topics)
            weight = max(weight, (self._db.total_changes - before) // ROWS)  # one ending may let a million jobs go
            if self._synchronous == "full":
                await self._sync(weight)
            elif weight > LARGE:
                await self._in_thread(self._threads, self._commit)
            else:
                self._commit()
        except BaseException:
            self._leases.forget()  # rows that were stored in the same transaction are gone, and their numbers with them
            self._roll_back()
            raise
        finally:
            lock.unlock()
        self._checkpoints.count(self._loop)
        return answers

    async def _answers(self, group: list[Request], topics: set[str]) -> list[Any]:
        """Walk through all calls: between two steps the loop gets a turn; what a step yields is done in a thread."""
        answers, at, begun = list[Any](), 0, time.perf_counter()
        while at < len(group):
            request, end = group[at], at + 1
            if request.jobs is not None:
                while end < len(group) and group[end].jobs is not None:
                    end += 1
            if at and time.perf_counter() - begun > HELD:
                await asyncio.sleep(0)
                begun = time.perf_counter()
            unit = UnitOfWork(self._db, self.now(), topics, self._leases)
            alone = end - at == 1
            steps = request.run(unit) if alone else self._merge(unit, [each.jobs or () for each in group[at:end]])
            try:
                wanted = next(steps)
                while True:
                    wanted = steps.send(await self._between(wanted))
            except StopIteration as stop:
                answers += [stop.value] if alone else stop.value
            except REFUSALS as refused:  # said before anything was written
                if not alone:
                    raise
                answers.append(refused)
            at = end
        return answers

    async def _between(self, wanted: Callable[[], Any] | None) -> Any:
        return await (asyncio.sleep(0) if wanted is None else self._in_thread(self._threads, wanted))

    async def _sync(self, weight: int) -> None:
        """Commit what is to be on the disk then."""
        if held := self._syncs.are_fast(weight):
            took = self._commit()
        else:
            took = await self._in_thread(self._threads, self._commit)
        self._syncs.took(took, held)

    def _commit(self) -> float:
        """Answers how many seconds it took."""
        begun = time.perf_counter()
        self._db.execute("COMMIT")
        return time.perf_counter() - begun

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite has rolled back by itself; the next BEGIN shows it

    def _begin_patiently(self) -> None:
        """Tries every 2 ms: SQLite's own waiting sleeps up to 100 ms, and those who try more often pass it."""
        until = clock.monotonic() + WAIT
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    async def _wait_for(self, lock: LockFile) -> None:
        """Stand in line for the lock, in a thread. Cancelled, it is let go of: the thread may have it by then."""
        got = False

        def wait() -> None:
            nonlocal got
            got = patiently(lock)

        try:
            await self._in_thread(self._threads, wait)
        except BaseException:
            if got:
                lock.unlock()
            raise
        if not got:
            raise held(lock)


async def in_thread(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, call: Callable[[], Any], finish: bool = True
) -> Any:
    """Run it there. When it takes long, sleep a little here now and then: a loop that is busy in short callbacks never
    leaves the GIL long enough for a thread to return. `finish`: cancelled, it is waited for all the same."""
    running: ThreadFuture[Any] = pool.submit(call)
    waiting = asyncio.wrap_future(running, loop=loop)
    nudge = loop.call_later(NUDGE, _nudge, loop, running)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if finish:
            running.exception()  # a transaction is never left with a thread in it
        raise
    finally:
        nudge.cancel()


def _nudge(loop: asyncio.AbstractEventLoop, running: ThreadFuture[Any]) -> None:
    if not running.done():
        time.sleep(0.0001)
        loop.call_later(NUDGE, _nudge, loop, running)


def place_of(path: str) -> tuple[int, int] | None:
    """Which file a path names: its device and inode. None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _let_go(opening: ThreadFuture[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        for each in (opened.search, opened.look, opened.db, opened.lock):
            if each is not None:
                each.close()


def _fail(request: Request, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)
