"""A transaction for one run, on a connection of its own that holds the lock until the transaction ends.

So a task's own writes are committed together with its ending. SQLite allows one writer at a time: all other writes to
the file wait meanwhile, and a second such transaction in this process waits for the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from treadle.core import clock
from treadle.core.errors import BadSession
from treadle.storage.sqlite.bulk_read import Ours
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.lockfile import WAIT, LockFile, begin_patiently
from treadle.storage.sqlite.opening import new_connection
from treadle.storage.sqlite.threads import in_thread
from treadle.storage.sqlite.user_transaction import Known, UserTransaction


class TaskConnection(Ours):
    """The connection that the function writes with. Treadle ends its transaction, together with the job."""

    def commit(self) -> NoReturn:
        raise BadSession(
            "current().transaction()", "Treadle commits it with the ending of the job, when the function returns"
        )

    def rollback(self) -> NoReturn:
        raise BadSession("current().transaction()", "to roll it back, raise an exception")

    def close(self) -> NoReturn:
        raise BadSession("current().transaction()", "Treadle closes it when the job has ended")


class RunTransaction:
    """Open from `begin` on. It has its own thread, because the storage's thread may be waiting for the lock held
    here."""

    alone = True

    def __init__(
        self, file: Known, synchronous: str, now: clock.Clock, turn: asyncio.Lock, committed: Callable[[set[str]], None]
    ) -> None:
        self._file, self._path = file, file.path
        self._synchronous, self._turn, self._committed = synchronous, turn, committed
        self._thread = ThreadPoolExecutor(1, "treadle-sqlite-run")
        self._loop = asyncio.get_running_loop()
        self._topics = set[str]()
        self._now = now
        self.bound: Any = None
        self._lock: LockFile | None = None
        self._over = self._unwanted = self._closed = False
        self.raw: Any = None

    async def begin(self) -> None:
        await self._turn.acquire()
        try:
            await in_thread(self._loop, self._thread, self._open, finish=False)
        except BaseException as error:
            self._unwanted = True
            await self.close()
            raised = translated(error, self._path)
            if raised is error:
                raise
            raise raised from error
        self.bound = UserTransaction(self.raw, self._file, self._now, self._topics)

    def _open(self) -> None:
        self._lock = LockFile(self._path + "-lock")
        self.raw = new_connection(self._path, TaskConnection)
        self.raw.execute(f"PRAGMA synchronous = {self._synchronous}")
        self.raw.execute("PRAGMA busy_timeout = 0")
        begin_patiently(self._lock, self.raw, lambda: self._unwanted)
        self.raw.execute(f"PRAGMA busy_timeout = {WAIT * 1000:.0f}")

    async def commit(self) -> None:
        assert self.raw is not None
        if not self.raw.in_transaction:
            raise BadSession("current().transaction()", "the function has ended the transaction; leave that to Treadle")
        try:
            await in_thread(self._loop, self._thread, self._commit)
        except sqlite3.Error as error:
            raise translated(error, self._path) from error
        self._end()
        self._committed(self._topics)

    def _commit(self) -> None:
        self.raw.execute("COMMIT")
        self._unlock()

    async def roll_back(self) -> None:
        if not self._over:
            self._end()
            await in_thread(self._loop, self._thread, self._undo, finish=False)

    def _undo(self) -> None:
        """Roll back. Every later statement of a function that continues to write is refused, in whatever thread it
        runs."""
        if self.raw is not None:
            with contextlib.suppress(sqlite3.Error):
                self.raw.interrupt()
                self.raw.set_authorizer(_only_rollback)
                if self.raw.in_transaction:
                    self.raw.execute("ROLLBACK")
        self._unlock()

    async def close(self) -> None:
        try:
            await self.roll_back()
        finally:  # also if the caller is cancelled meanwhile: the thread rolls back first
            if not self._closed:
                self._closed = True
                self._thread.submit(self._close)
                self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self.raw is not None:
            sqlite3.Connection.close(self.raw)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _end(self) -> None:
        """Let the next transaction begin."""
        self._over = True
        self._turn.release()


def _only_rollback(action: int, what: str | None, *_: object) -> int:
    return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_TRANSACTION and what == "ROLLBACK" else sqlite3.SQLITE_DENY
