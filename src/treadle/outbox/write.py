"""`within=` of an app with an outbox: the jobs become rows of the user's own transaction."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from treadle.core.clock import wall
from treadle.core.errors import UNREADABLE, BadSession, StorageError, Unsupported
from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.outbox.address import Address
from treadle.outbox.drivers import Database, Row, checked_mark, missing, raise_translated
from treadle.outbox.rows import expected, job_of, written
from treadle.outbox.table import Sent, Statements
from treadle.storage import ASYNC, DJANGO, SCOPED, SYNC, Session, class_names, is_async, session_of, stale

MOST: Final = 1_000  # jobs of one transaction that are reported; the relay finds the others
SESSIONS: Final = (SYNC[0], ASYNC[0])

Report = Callable[[Sequence[str]], None]

_open: Final[WeakKeyDictionary[Any, dict[Report, list[str]]]] = WeakKeyDictionary()


def same_file(file: str, path: str) -> bool:
    return bool(file) and os.path.exists(file) and os.path.exists(path) and os.path.samefile(file, path)


class Checked:
    """The mark of the database, as this process has read it, and the connections that belong to it."""

    def __init__(self) -> None:
        self.mark: str | None = None  # None: not read yet, or the database did not answer
        self.is_read = False
        self._known: WeakSet[Any] = WeakSet()

    def has(self, raw: Any) -> bool:
        try:
            return raw in self._known
        except TypeError:  # no weak references to it
            return False

    def add(self, raw: Any) -> None:
        with suppress(TypeError):
            self._known.add(raw)


class Written:
    """The verbs inside one transaction of the user.

    committed  called with the ids after the commit, if the session reports it
    """

    def __init__(
        self,
        within: Any,
        database: Database,
        statements: Statements,
        checked: Checked,
        committed: Callable[[Sequence[str]], None] | None,
    ) -> None:
        self._within, self._database, self._statements = within, database, statements
        self._checked, self._committed = checked, committed

    @property
    def _address(self) -> Address:
        return self._database.address

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        """Write the rows. Only the delivery shows whether a key is held or an id is taken, so this returns records of
        the jobs themselves. Raises BadOption, TooLarge, BadSession and StorageError."""
        rows = written(jobs)
        session = await self._session()
        if rows:
            await self._run(session, self._statements.insert(rows))
            if self._committed is not None:
                when_committed(self._within, [job.id for job in jobs], self._committed)
        now = wall()
        return [expected(job, now) for job in jobs]

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        """The jobs in the outbox, as this transaction sees them."""
        session, records = await self._session(), dict[str, Record]()
        for id, text in await self._run(session, self._statements.jobs(ids)):
            try:
                records[id] = expected(job_of(text), 0.0)
            except UNREADABLE:
                continue
        return [records.get(id) for id in ids]

    async def take(self, ids: Sequence[str]) -> list[NewJob]:
        """Delete the rows of these jobs; returns the jobs as they must be delivered. For tests, whose transaction is
        never committed. Raises an error of UNREADABLE."""
        session = await self._session()
        jobs = [job_of(text) for _, text in await self._run(session, self._statements.jobs(ids))]
        if jobs:
            await self._run(session, self._statements.without([job.id for job in jobs]))
        return jobs

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        raise Unsupported("an outbox", "settling jobs within=", "do it after your commit, without within=")

    async def _session(self) -> Session:
        session = await session_of(self._within, self._address.dialect, f"the outbox, {self._address.shown}")
        connection = getattr(session, "identity", session.raw)
        if not self._checked.has(connection):
            await self._check(session)
            self._checked.add(connection)
        return session

    async def _run(self, session: Session, sent: Sent) -> list[Row]:
        text, values = sent
        try:
            return await session.run(text, values)
        except StorageError:
            raise
        except Exception as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise stale(self._within) from error
            raise_translated(error, self._address)

    async def _check(self, session: Session) -> None:
        """Raise an error unless the session is on the database of the outbox, and that has its tables."""
        address = self._address
        if address.dialect == "sqlite":
            await self._check_file(session)
        if not await self._run(session, self._statements.exists()):
            raise missing(await self._where(session))
        mark, _ = checked_mark(await self._run(session, self._statements.mark()), address)
        wanted = self._checked.mark
        if not self._checked.is_read or wanted not in (None, mark):  # the tables may have been created again since
            wanted = await asyncio.to_thread(self._ask) if is_async(self._within) else self._ask()
        if wanted is not None and mark != wanted:
            raise BadSession(
                f"a {type(self._within).__name__}", f"it is a transaction of another database than {address.database}"
            )

    async def _check_file(self, session: Session) -> None:
        path = self._address.target
        for _, name, file in await session.run("PRAGMA database_list"):
            if name == "main" and not same_file(file, path):
                raise BadSession(
                    f"a connection to {file or 'a database in memory'}",
                    f"the outbox is in {path}, and a transaction cannot span two files",
                )

    async def _where(self, session: Session) -> str:
        """The database of the session, which may be another one than the outbox's."""
        if self._address.dialect == "sqlite":
            return self._address.database
        name = "current_database()" if self._address.dialect == "postgresql" else "DATABASE()"
        [(database,)] = await self._run(session, (f"SELECT {name}", ()))
        return f"the database {database!r} of a {type(self._within).__name__} (the outbox is {self._address.shown})"

    def _ask(self) -> str | None:
        """The mark of the database at the outbox's URL, over a connection of our own, once in a process. None: the
        database does not answer, for example because this process has no account there."""
        self._checked.is_read = True
        if self._address.dialect == "sqlite":
            return None  # the file was compared, and it may be locked by the user's own transaction
        try:
            [rows] = self._database.run_once([self._statements.mark()])
            self._checked.mark, _ = checked_mark(rows, self._address)
        except StorageError:
            self._checked.mark = None
        return self._checked.mark


# --- reports of the commit, where the session can tell: sessions of SQLAlchemy, and Django's connection. SQLAlchemy's
# connections report a commit before it is sent, so they are left to the relay. A part of the transaction may have been
# rolled back, so the receiver of a report reads which rows were committed.


def when_committed(session: Any, ids: Sequence[str], report: Report) -> None:
    """Call `report` with the ids after the commit. Does nothing for a session that does not report its commit."""
    names = class_names(session)
    if not names.isdisjoint(SCOPED):
        session = session()
        names = class_names(session)
    if not names.isdisjoint(DJANGO):
        session.on_commit(lambda: report(ids[:MOST]), robust=True)
    elif not names.isdisjoint(SESSIONS):
        _of_session(getattr(session, "sync_session", session), ids, report)


def _of_session(session: Any, ids: Sequence[str], report: Report) -> None:
    waiting = _open.get(session)
    if waiting is None:
        from sqlalchemy import event

        waiting = _open[session] = {}
        event.listen(session, "after_commit", _committed)
    known = waiting.setdefault(report, [])
    known += ids[: MOST - len(known)]


def _committed(session: Any) -> None:
    """SQLAlchemy calls this for the release of a savepoint too."""
    if session.get_nested_transaction() is not None:
        return
    waiting = _open.get(session)
    if waiting:
        reports = dict(waiting)
        waiting.clear()
        for report, ids in reports.items():
            report(ids)
