"""The open file: its connections, its lock, and the checks that this process may still use it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from treadle.concurrency import forks
from treadle.concurrency.forked_files import place_of
from treadle.concurrency.spawn import mark_retrieved, started
from treadle.core import clock
from treadle.core.errors import StorageDenied, StorageError, StorageUnavailable
from treadle.storage.sqlite.checkpoint import Checkpoints
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.lockfile import patiently
from treadle.storage.sqlite.opening import Opened, look_at_file, open_file
from treadle.storage.sqlite.threads import Standby, in_thread
from treadle.storage.sqlite.waiting_workers import WaitingWorkers

LOOK: Final = 1.0  # seconds between two checks that the path still names the open file; 3 us each
PARTS: Final = ("", "-wal", "-shm")  # what SQLite keeps open
TICK: Final = 20_000_000  # ns in which several changes of a folder may get the same time
COARSE_TICK: Final = 2_100_000_000  # the same where a file system counts seconds

T = TypeVar("T")
Place = tuple[int, int] | None

log = logging.getLogger("treadle.storage.sqlite")


class OpenFile:
    """Three connections to one file: `db` writes, `look` reads on the loop, `search` reads in a thread."""

    def __init__(self, path: str, now: clock.Clock, synchronous: str, shared: bool = False) -> None:
        self.named = os.path.abspath(path)
        # one lock and one folder of sockets, through whatever link the file is opened
        self.path = os.path.realpath(path)
        self._folder = os.path.dirname(self.path)
        self.now, self.synchronous = now, synchronous
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self.task: asyncio.Task[None] | None = None  # the transactions in progress
        self.unwritable = ""  # why this process cannot write; "" if it can
        self._shared = shared
        self._closed: asyncio.Task[None] | None = None  # set while the file is being closed
        self._places: list[Place] = []  # one for each of PARTS
        self._folder_seen = 0  # the folder's mtime (ns) at the last check of its files; 0: check after the next commit
        self._look_at = 0.0
        self._log = -1  # a descriptor of the log, on which SQLite holds no locks; -1: it is not watched
        self._state: tuple[float, int, bool] | None = None  # of a file whose connections see its former state
        self._replaced: list[sqlite3.Connection] = []  # its former connections: a search may still use one

    async def open(self, look: bool = False) -> None:
        while self._closed is not None and self._closed.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._closed])  # otherwise the close in progress would close what this call opens
        if self.loop is not None:
            return
        self._pid = os.getpid()
        self.threads = ThreadPoolExecutor(1, "treadle-sqlite")
        self._searches = ThreadPoolExecutor(1, "treadle-sqlite-look")
        loop = asyncio.get_running_loop()
        opening = self.threads.submit(
            lambda: (
                look_at_file(self.path, self._shared)
                if look
                else open_file(self.path, self.synchronous, self.now, self._shared)
            )
        )
        try:
            opened = await asyncio.shield(asyncio.wrap_future(opening, loop=loop))
        except BaseException as error:
            opening.add_done_callback(_let_go)  # close what the thread still opens after the caller gave up
            self.threads.shutdown(wait=False)
            self._searches.shutdown(wait=False)
            raised = translated(error, self.path)
            if raised is error:
                raise
            raise raised from error
        self.db, self.look, self.search = opened.db, opened.look, opened.search
        self.lock, self.unwritable = opened.lock, opened.unwritable
        self._state = _state_of(self.path) if opened.still else None
        if self.lock is not None:
            self.waiting_workers = WaitingWorkers(self.lock)
        self.loop, self.closing = loop, False
        self.standby = Standby(self.threads)
        self._places, self._folder_seen = self._places_now(), 0
        self._look_at = clock.monotonic() + LOOK
        if not self.unwritable and hasattr(os, "pread"):
            self._log = os.open(f"{self.path}-wal", os.O_RDONLY)
        self.checkpoints = Checkpoints(self.path, self.synchronous, self._check_files)

    async def close(self) -> None:
        """Close the file. If the caller is cancelled, closing continues; the next `open` or `close` waits for it."""
        if self._closed is None:
            if self.loop is None:
                return
            self._check_owner()
            self.closing = True
            self._closed = started(self._finish(self.loop), loop=self.loop)
            self._closed.add_done_callback(mark_retrieved)
        await asyncio.shield(self._closed)

    async def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self.task is not None:
                await asyncio.wait([self.task])
            await self.checkpoints.finish()
        finally:  # even if the event loop is ending
            self.loop = None
            try:
                self.standby.leave()
                await loop.run_in_executor(self.threads, self._close)
            finally:
                self.threads.shutdown(wait=False)
                self._searches.shutdown(wait=True)
                self._closed = None

    def _close(self) -> None:
        """Close all connections, under the lock: the last one to close runs a checkpoint."""
        self._searches.shutdown(wait=True)  # they answer; one whose caller was cancelled may still read
        try:
            now = self._places_now()
            is_replaced = now[0] != self._places[0] or any(a and a != b for a, b in zip(now, self._places, strict=True))
            if not is_replaced and not self._is_log_cut():
                self._close_connections()
            else:  # SQLite would delete the log by its name, which is another database's, or move zeros into the file
                for connection in self._connections():
                    forks.leave(connection)
        finally:
            self._replaced.clear()
            self.checkpoints.close()
            if self._log >= 0:
                os.close(self._log)
                self._log = -1
            if self.lock is not None:
                self.lock.close()

    def _connections(self) -> list[sqlite3.Connection]:
        connections = (*self._replaced, self.search, self.look, self.checkpoints.db, self.checkpoints.keeper, self.db)
        return [connection for connection in connections if connection is not None]

    def _close_connections(self) -> None:
        locked = self.lock is not None and patiently(self.lock)
        try:
            for connection in self._connections():
                connection.close()
        finally:
            if locked and self.lock is not None:
                self.lock.unlock()

    def check_process(self) -> None:
        """Raise unless this process opened the file and the file is still there."""
        if self.loop is None or os.getpid() != self._pid:
            self._check_owner()
        if self._state is not None:
            self._follow()
        if clock.monotonic() > self._look_at:
            self._check_place()

    def _follow(self) -> None:
        """Open a file that had no log again, if a process has changed it or keeps a log of it now."""
        if _state_of(self.path) == self._state:
            return
        self._state = _state_of(self.path)
        try:
            opened = look_at_file(self.path, self._shared, self.unwritable)
        except Exception as error:
            raise translated(error, self.path) from error
        self._replaced += [self.search, self.look, self.db]
        self.db, self.look, self.search = opened.db, opened.look, opened.search
        if not opened.still:
            self._state = None
        self._places = self._places_now()

    def _check_owner(self) -> None:
        if self.loop is None:
            raise StorageUnavailable(f"{self.path} is not open; call open() first")
        if os.getpid() != self._pid:
            raise StorageError(
                f"{self.path} was opened by process {self._pid}, this is its child {os.getpid()}: "
                "SQLite connections do not survive a fork; open a new storage in the child"
            )

    def confirm(self) -> None:
        """Raise if the transaction that was just committed may be in a file that no other process reads. One `stat` of
        the folder, 1.3 us, unless a file in it was created, deleted or renamed meanwhile; and a byte of the log."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except OSError:
            changed = -1
        if changed != self._folder_seen or self._is_log_cut():
            self._check_files()
            tick = TICK if changed % 1_000_000_000 else COARSE_TICK
            self._folder_seen = changed if time.time_ns() - changed > tick else 0

    def _check_files(self) -> None:
        """Raise if a path names another file than the one open here: no other process would see what is stored."""
        for end, place, now in zip(PARTS, self._places, self._places_now(), strict=False):
            if place != now:
                self._look_at = 0.0
                cure = "or put the file back" if not end else "and every other one that has it open"
                raise StorageUnavailable(
                    f"{self.named}{end} was deleted, moved or replaced while this process had it open, so other "
                    f"processes do not see its changes: restart this process, {cure}"
                )
        if self._is_log_cut():
            self._look_at = 0.0
            raise StorageUnavailable(
                f"{self.named}-wal was truncated while this process had it open, so jobs that were confirmed before "
                "are lost: restart this process, and every other one that has it open"
            )

    def _is_log_cut(self) -> bool:
        """Whether the log has lost its header, although commits follow: they were written past the end of a file that
        is shorter now. After a checkpoint that truncates the log, the next commit begins with a header."""
        return self._log >= 0 and os.pread(self._log, 1, 0) == b"\0"

    def _places_now(self) -> list[Place]:
        """Where the files are: only the database if it is read without a log."""
        parts = PARTS if self._state is None else PARTS[:1]
        return [place_of(self.path + end if end else self.named) for end in parts]

    def _check_place(self) -> None:
        """Raise if a path names another file. A deleted lock file is created again; it holds nothing that must be
        kept."""
        self._check_files()
        self._look_at = clock.monotonic() + LOOK
        if self.lock is not None and self.task is None and not self.lock.is_in_place():
            log.warning("%s was deleted while the database is in use; creating it again", self.lock.path)
            self.lock.reopen()

    def denied(self) -> StorageDenied:
        """The error of a write, if this process has no lock or cannot write."""
        return StorageDenied(f"{self.path} is read-only for this process, nothing was stored: {self.unwritable}")

    def foreign_version(self) -> int | None:
        """A number that changes when another process commits; None while a transaction of this object is in
        progress."""
        if self.task is not None or self.loop is None:
            return None
        try:
            number: int = self.db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return number

    # --- threads

    async def in_search(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run a long read in a thread, on a connection of its own. It should return few rows: the thread loses the GIL
        at each."""
        self.check_process()
        assert self.loop is not None
        return await in_thread(self.loop, self._searches, lambda: read(self.search), finish=False)


def _state_of(path: str) -> tuple[float, int, bool] | None:
    """When the file was changed last, its size, and whether it has a log. None: there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, os.path.exists(path + "-wal")


def _let_go(opening: ThreadFuture[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        for part in (opened.search, opened.look, opened.db, opened.lock):
            if part is not None:
                part.close()
