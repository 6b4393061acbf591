"""Moves the log back into the database file: often, in small portions, in a thread, under the lock.

SQLite's own automatic checkpoint is off, because it stops the loop for 27 ms (measured).

A checkpoint begins by syncing the log, about five pages for each job that was stored alone. The sync runs before the
lock is taken, while others write, so little is left to sync under the lock: such a job waited 24 us for checkpoints,
now 8.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from treadle.core import clock
from treadle.storage.sqlite.bulk_read import Ours
from treadle.storage.sqlite.lockfile import PATIENCE, LockFile, begin, patiently

EVERY: Final = 400  # commits
LOOK: Final = 16  # commits between two checks of the log's size
LARGE: Final = 16 * 2**20  # bytes of log after which a checkpoint runs, however few commits there were
HUGE: Final = 256 * 2**20  # bytes after which a checkpoint waits for readers and truncates the log
READERS: Final = 500  # ms for which it waits for readers, while no process can write
PAUSE_FIRST: Final = 5.0  # s until the next such wait, if a reader did not end
PAUSE_MOST: Final = 300.0
SOMEBODY_READS: Final = (
    "%s is larger than %d MB and cannot be moved back into the database, because a program keeps a read transaction "
    "open: look for a forgotten sqlite3 shell or notebook, a backup, or a query whose rows were not all fetched. "
    "`lsof` on the file names the processes. The log grows until that transaction ends"
)
HEAD: Final = 32  # bytes at the beginning of a log, and before each of its pages
PAGE_HEAD: Final = 24

log = logging.getLogger("treadle.storage.sqlite")


class Checkpoints:
    """Runs checkpoints on its own connection, in its own thread.

    check_files  raises if the log of this name is not the one that is open
    db           that connection; None before it is needed
    keeper       keeps others from writing meanwhile
    """

    def __init__(self, path: str, synchronous: str, check_files: Callable[[], None]) -> None:
        self._path, self._log, self._synchronous = path, path + "-wal", synchronous
        self._check_files = check_files
        self._since = 0
        # True: the log has doubled while a checkpoint ran, so the disk is slow and writers wait
        self.is_behind = False
        self._kept = 0  # bytes of log that the last checkpoint could not move because of a reader
        self._running: asyncio.Future[None] | None = None
        self.db: sqlite3.Connection | None = None
        self.keeper: sqlite3.Connection | None = None
        self._lock: LockFile | None = None
        self._thread: ThreadPoolExecutor | None = None

    def count(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Count one more commit; start a checkpoint if it is time."""
        self._since += 1
        running = self._running is not None
        if loop is None or self.is_behind:
            return
        if self._since < EVERY and (self._since % LOOK or not self._is_long(running)):
            return
        if running:
            self.is_behind = True
            return
        self._since = 0
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "treadle-sqlite-checkpoint")
        self._running = loop.run_in_executor(self._thread, self._checkpoint)
        self._running.add_done_callback(self._done)

    def _is_long(self, running: bool) -> bool:
        """Whether so much was written since the last checkpoint that the next one must run, however few commits there
        were."""
        return is_long(self._log, self._kept + (2 * LARGE if running else LARGE))

    def _done(self, running: asyncio.Future[None]) -> None:
        self._running, self.is_behind = None, False
        error = None if running.cancelled() else running.exception()
        if error is not None:
            log.warning("the checkpoint of %s failed; the log grows until one succeeds: %s", self._path, error)

    def _checkpoint(self) -> None:
        if self._lock is None:
            self._lock = LockFile(self._path + "-lock")
        elif not self._lock.is_in_place():
            self._lock.reopen()
        if self.db is None:
            self._check_files()  # another log would be opened with our index
            self.db = self._connection()
        if self.keeper is None:
            self._check_files()
            self.keeper = self._connection()
        if self._synchronous == "normal":
            sync(self._log)
        huge = is_long(self._log, HUGE)
        patiently(self._lock, until=clock.monotonic() + PATIENCE)  # its holder may be stopped
        try:
            self._check_files()
            self._move(self._lock, huge)
        finally:
            self._lock.unlock()

    def _connection(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False, factory=Ours)
        try:
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            db.close()
            raise
        return db

    def _move(self, lock: LockFile, huge: bool) -> None:
        """Move the pages that no reader needs any more. If the log is huge, wait for readers, move everything, and
        truncate the log. If a reader did not end, no process waits for it again during a pause, which doubles each
        time.

        SQLite before 3.51.3 may corrupt a log that a connection starts over while a checkpoint reads its length, so no
        process may write meanwhile. FULL does not ensure that: while another connection writes, it does the same as
        PASSIVE."""
        assert self.db is not None
        assert self.keeper is not None
        now, (until, pause) = clock.wall(), lock.patience()
        cut = huge and not now < until <= now + PAUSE_MOST
        self.keeper.execute(f"PRAGMA busy_timeout = {0 if lock.is_held else READERS}")
        if not begin(self.keeper):  # for example a shell writes: the next checkpoint moves the pages
            self._kept = os.path.getsize(self._log)
            return
        try:
            [(busy, pages, moved)] = self.db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            self.keeper.execute("ROLLBACK")
        if cut:
            self.db.execute(f"PRAGMA busy_timeout = {READERS}")
            [(busy, pages, moved)] = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        blocked = bool(busy) or moved < pages
        self._kept = os.path.getsize(self._log) if blocked else 0
        if not huge:
            if pause and not blocked:
                lock.set_patience(0.0, 0.0)
        elif cut and blocked:
            if not pause:
                log.warning(SOMEBODY_READS, self._log, HUGE >> 20)
            pause = min(2 * pause, PAUSE_MOST) if pause else PAUSE_FIRST
            lock.set_patience(clock.wall() + pause, pause)

    async def finish(self) -> None:
        """Wait for the checkpoint that runs now."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def close(self) -> None:
        """Stop the thread and release the lock file. The connections were closed with the others."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._lock is not None:
            self._lock.close()


def sync(path: str) -> None:
    """Sync the log early, so that the checkpoint has less to wait for. SQLite syncs it again and reports errors.
    Opening the log here is safe: SQLite holds no locks on this file that closing another descriptor would drop."""
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDWR)
        try:
            getattr(os, "fdatasync", os.fsync)(log)
        finally:
            os.close(log)


def is_long(path: str, most: int) -> bool:
    """Whether the log holds more than `most` bytes. Its file never shrinks, because SQLite overwrites it from the
    beginning. So read the page at that offset: its salt is that of the log's header only if it belongs to the current
    log."""
    try:
        if os.stat(path).st_size <= most:
            return False
        with open(path, "rb", buffering=0) as log:
            head = log.read(HEAD)
            page = PAGE_HEAD + int.from_bytes(head[8:12], "big")
            log.seek(HEAD + most // page * page)
            return log.read(PAGE_HEAD)[8:16] == head[16:24]
    except OSError:
        return False
