"""Moving the log back into the file: often and in small portions, in a thread, under the lock.

Without it the log would grow for ever, and SQLite's own automatic checkpoint would stop the loop for 27 ms (measured).

A checkpoint begins by syncing the log, five pages for each job that was stored by itself. That is done before the lock
is taken, while others write, and little is left to sync under it: of 24 us that such a job waited for checkpoints, 8.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from treadle.storage.sqlite.lockfile import LockFile

EVERY: Final = 400  # commits
LOOK: Final = 16  # commits between two looks at the size of the log
LARGE: Final = 16 * 2**20  # bytes of log after which it is time, however few commits
HUGE: Final = 256 * 2**20  # bytes after which readers are waited for, and the log is cut off
HEAD: Final = 32  # bytes at the beginning of a log, and before each of its pages
PAGE_HEAD: Final = 24

log = logging.getLogger("treadle.storage.sqlite")


class Checkpoints:
    """A connection and a thread of their own."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._path, self._log, self._synchronous = path, path + "-wal", synchronous
        self._since = 0
        self.is_behind = False  # as much as it moves was written since it began: the disk is slow, writers are to wait
        self._running: asyncio.Future[None] | None = None
        self._db: sqlite3.Connection | None = None
        self._lock: LockFile | None = None
        self._thread: ThreadPoolExecutor | None = None

    def count(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """One more commit."""
        self._since += 1
        running = self._running is not None
        if loop is None or self.is_behind:
            return
        if self._since < EVERY and (self._since % LOOK or not is_long(self._log, 2 * LARGE if running else LARGE)):
            return
        if running:
            self.is_behind = True
            return
        self._since = 0
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "treadle-sqlite-checkpoint")
        self._running = loop.run_in_executor(self._thread, self._checkpoint)
        self._running.add_done_callback(self._done)

    def _done(self, running: asyncio.Future[None]) -> None:
        self._running, self.is_behind = None, False
        error = None if running.cancelled() else running.exception()
        if error is not None:
            log.warning("checkpoint of %s failed, the log goes on growing until one succeeds: %s", self._path, error)

    def _checkpoint(self) -> None:
        if self._db is None:
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._lock = LockFile(self._path + "-lock")
        assert self._lock is not None
        if self._synchronous == "normal":
            sync(self._log)
        huge = is_long(self._log, HUGE)
        self._db.execute(f"PRAGMA busy_timeout = {500 if huge else 0}")
        self._lock.lock()
        try:
            self._db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if huge else 'PASSIVE'})").fetchall()
        finally:
            self._lock.unlock()

    async def finish(self) -> None:
        """Wait for the one that runs."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def close(self) -> None:
        """The caller holds the lock file."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._db is not None:
            self._db.close()
        if self._lock is not None:
            self._lock.close()


def sync(path: str) -> None:
    """Only so that less is left to wait for: SQLite syncs the log again, and tells what fails. It holds no locks on
    this file, which would go as another descriptor of it is closed."""
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDWR)
        try:
            getattr(os, "fdatasync", os.fsync)(log)
        finally:
            os.close(log)


def is_long(path: str, most: int) -> bool:
    """Whether a log holds more bytes than that. Its file stays as long as it ever was, and is written anew from the
    beginning: so whether the page that stands there belongs to what the head says is being written."""
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
