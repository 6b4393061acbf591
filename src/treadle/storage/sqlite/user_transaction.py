"""The methods inside a transaction on another connection: the user's own, or one that was begun for a run.

So a job and the user's data are stored together, or neither is. The steps are the same as elsewhere and run on that
connection. A savepoint around each call rolls a failed call back.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

from treadle.core import clock
from treadle.core.errors import BadSession, Locked, StorageError
from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.storage.driver_sessions import FileSession, plain_cursor, plain_texts
from treadle.storage.row_rules import REFUSALS
from treadle.storage.sqlite import queries
from treadle.storage.sqlite.counts import Changes
from treadle.storage.sqlite.enqueue import enqueue
from treadle.storage.sqlite.errors import translated
from treadle.storage.sqlite.lock_holders import writer_of
from treadle.storage.sqlite.lockfile import WAIT
from treadle.storage.sqlite.migrate import check, newest
from treadle.storage.sqlite.settle import settle
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.storage.user_session import session_of, stale
from treadle.storage.value_checks import check_jobs, guarded_settle

T = TypeVar("T")
Steps = Callable[[UnitOfWork], Generator[Any, Any, T]]
PAUSE = 0.002  # s between two attempts to get the write lock
MAKE = "run `treadle storage migrate`, or open the app, before the first transaction"


class Plain:
    """The user's connection with plain rows: tuples, and text as str, whatever factories the user has set."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return plain_cursor(self._raw).execute(statement, values)

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        return plain_cursor(self._raw).executemany(statement, values)


class Known:
    """The file of a storage, and whether it is known to have our schema. A storage that was never opened asks the
    user's connection: opening the file could wait for that very transaction."""

    def __init__(self, path: str, shared: bool) -> None:
        self.path, self._shared = path, shared
        self.is_made = False

    def check(self, raw: sqlite3.Connection, again: bool = False) -> None:
        """Raise unless the file has our schema. `again`: also if it had it once, because a test may have made the file
        again."""
        if self.is_made and not again:
            return
        self.is_made = False
        schema = check(Plain(raw), self.path, self._shared)  # type: ignore[arg-type]
        if schema < newest():
            what = f"its schema is {schema}, this Treadle needs {newest()}" if schema else "it has no tables of Treadle"
            raise StorageError(f"{self.path}: {what}; {MAKE}")
        self.is_made = True


class UserTransaction:
    """The methods on the user's `session`. Each call looks at it again, because it may have ended meanwhile."""

    def __init__(self, session: Any, file: Known, now: clock.Clock, topics: set[str] | None = None) -> None:
        self._user_session, self._file, self._path, self._now = session, file, file.path, now
        self._topics = set[str]() if topics is None else topics

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        check_jobs(jobs)
        return await self._do(lambda unit: enqueue(unit, jobs)) if jobs else []

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._do(lambda unit: settle(unit, outcomes)) if outcomes else []

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        def read(raw: sqlite3.Connection) -> list[Record | None]:
            with plain_texts(raw):
                self._check_file(raw)
                self._file.check(raw)
                return queries.by_ids(Plain(raw), ids)  # type: ignore[arg-type]  # all that a query needs

        return await (await self._session()).call(read)

    async def _session(self) -> FileSession:
        return cast("FileSession", await session_of(self._user_session, "sqlite", f"the SQLite file {self._path}"))

    async def _do(self, steps: Steps[T]) -> T:
        """Run the steps as soon as this connection has the write lock. The event loop must run meanwhile: the lock may
        be held by our own storage, which continues there."""
        session, until = await self._session(), clock.monotonic() + WAIT
        while True:
            try:
                return await session.call(lambda raw: self._act(raw, steps))
            except _Busy as error:
                if clock.monotonic() > until:
                    pid, program = writer_of(self._path)
                    what = f"the write lock of the file, for {WAIT:.0f} s"
                    raise Locked(self._path, what, pid=pid, application=program) from error.__cause__
            await _pause()

    def _act(self, raw: sqlite3.Connection, steps: Steps[T]) -> T:
        """Run the whole function without a pause, in the thread of the connection. Raises _Busy."""
        with plain_texts(raw):
            self._check_file(raw)
            began = not raw.in_transaction
            self._lock(raw, "BEGIN IMMEDIATE" if began else "DELETE FROM meta WHERE 0")
            raw.execute("SAVEPOINT treadle")
            try:
                self._file.check(raw)
                counts, plain = Changes(), cast("sqlite3.Connection", Plain(raw))
                answer = _walk(steps(UnitOfWork(plain, self._now(), self._topics, counts)))
                counts.write(plain)
            except BaseException as error:
                if raw.in_transaction:  # SQLite rolls back by itself when the disk is full
                    raw.execute("ROLLBACK" if began else "ROLLBACK TO treadle")
                if raw.in_transaction:
                    raw.execute("RELEASE treadle")
                if isinstance(error, REFUSALS):
                    raise
                raise self._translated(raw, error) from error
            raw.execute("RELEASE treadle")
            return answer

    def _check_file(self, raw: sqlite3.Connection) -> None:
        for _, name, file in Plain(raw).execute("PRAGMA database_list"):
            if name == "main" and not _same(file, self._path):
                raise BadSession(
                    f"a connection to {file or 'a database in memory'}",
                    f"the jobs are in {self._path}, and a transaction cannot span two files",
                )

    def _lock(self, raw: sqlite3.Connection, statement: str) -> None:
        """Take the write lock, without waiting in SQLite. Raises _Busy if another transaction has it."""
        [patience] = Plain(raw).execute("PRAGMA busy_timeout").fetchone()
        raw.execute("PRAGMA busy_timeout = 0")
        try:
            raw.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise stale(self._user_session) from error
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise _Busy from error
            raise self._translated(raw, error) from error
        finally:
            raw.execute(f"PRAGMA busy_timeout = {patience}")

    def _translated(self, raw: sqlite3.Connection, error: BaseException) -> BaseException:
        """The error that the caller gets. If our tables are missing, that error says what to do."""
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_ERROR:
            try:
                self._file.check(raw, again=True)
            except StorageError as found:
                return found
        return translated(error, self._path)


class _Busy(Exception):
    """Another transaction has the write lock."""


async def _pause() -> None:
    """Without an event loop the thread sleeps, because such a caller cannot await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(PAUSE)  # noqa: ASYNC251 - see above
    else:
        await asyncio.sleep(PAUSE)


def _same(file: str, path: str) -> bool:
    return bool(file) and os.path.exists(file) and os.path.samefile(file, path)


def _walk(steps: Generator[Any, Any, T]) -> T:
    """Run all steps here and now, including those that would get a turn of the loop or a thread."""
    value = None
    try:
        while True:
            wanted = steps.send(value)
            value = wanted() if wanted is not None else None
    except StopIteration as stop:
        answer: T = stop.value
        return answer
