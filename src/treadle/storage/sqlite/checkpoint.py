"""Moving the log back into the file: often and in small portions, in a thread, under the lock.

Without it the log would grow for ever, and SQLite's own automatic checkpoint would stop the loop for 27 ms (measured).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from treadle.storage.sqlite.lockfile import LockFile

EVERY: Final = 200  # commits
LOOK: Final = 16  # commits between two looks at the size of the log
LARGE: Final = 16 * 2**20  # bytes of log after which it is time, however few commits
HUGE: Final = 256 * 2**20  # bytes after which readers are waited for, and the log is cut off

log = logging.getLogger("treadle.storage.sqlite")


class Checkpoints:
    """A connection and a thread of their own."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._since = 0
        self._running: asyncio.Future[None] | None = None
        self._db: sqlite3.Connection | None = None
        self._lock: LockFile | None = None
        self._thread: ThreadPoolExecutor | None = None

    def count(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """One more commit."""
        self._since += 1
        if self._running is not None or loop is None:
            return
        if self._since >= EVERY or (self._since % LOOK == 0 and self._size() > LARGE):
            self._since = 0
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "treadle-sqlite-checkpoint")
            self._running = loop.run_in_executor(self._thread, self._checkpoint)
            self._running.add_done_callback(self._done)

    def _size(self) -> int:
        try:
            return os.stat(self._path + "-wal").st_size
        except OSError:
            return 0

    def _done(self, running: asyncio.Future[None]) -> None:
        self._running = None
        error = None if running.cancelled() else running.exception()
        if error is not None:
            log.warning("checkpoint of %s failed, the log goes on growing until one succeeds: %s", self._path, error)

    def _checkpoint(self) -> None:
        if self._db is None:
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._lock = LockFile(self._path + "-lock")
        assert self._lock is not None
        huge = self._size() > HUGE
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
