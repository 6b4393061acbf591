"""Wraps the transactions of users, of any driver or framework, into one interface: run a statement, return its rows.

Imports no driver that the user has not imported: the kind of a session is recognised by the name of its class.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from treadle.errors import BadSession
from treadle.storage.capabilities import transactional
from treadle.storage.contract import Bound, Storage

T = TypeVar("T")
Row = tuple[Any, ...]
Dialect = Literal["sqlite", "postgresql"]

DJANGO = "django.utils.connection ConnectionProxy", "django.db.backends.base.base BaseDatabaseWrapper"
SYNC = "sqlalchemy.orm.session Session", "sqlalchemy.engine.base Connection"
ASYNC = "sqlalchemy.ext.asyncio.session AsyncSession", "sqlalchemy.ext.asyncio.engine AsyncConnection"
SCOPED = "sqlalchemy.orm.scoping scoped_session", "sqlalchemy.ext.asyncio.scoping async_scoped_session"
ASYNCPG = "asyncpg.connection Connection", "asyncpg.pool PoolConnectionProxy"
KNOWN = (
    "a connection of sqlite3, psycopg or asyncpg, a Session, AsyncSession or connection of SQLAlchemy, "
    "or Django's connection"
)


class Session(Protocol):
    """An open transaction of the user. Only the user commits it or rolls it back."""

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of its database."""
        ...

    @property
    def raw(self) -> Any:
        """The driver's own connection."""
        ...

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement, with ?1 ?2 ... (SQLite) or $1 $2 ... (PostgreSQL) for its values; return its rows as
        tuples. Raises the errors of the driver. It never awaits a session that is not an asyncio one (see `at_once`).
        """
        ...


class SqliteSession(NamedTuple):
    raw: sqlite3.Connection
    dialect: Dialect = "sqlite"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = self.raw.cursor(sqlite3.Cursor)
        cursor.row_factory = None  # the user may have set one; we need tuples
        return cursor.execute(statement, tuple(values)).fetchall()


class PsycopgSession(NamedTuple):
    raw: Any
    dialect: Dialect = "postgresql"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        from psycopg import RawCursor
        from psycopg.rows import tuple_row

        with RawCursor(self.raw, row_factory=tuple_row) as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description is not None else []


class AsyncPsycopgSession(NamedTuple):
    raw: Any
    dialect: Dialect = "postgresql"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        from psycopg import AsyncRawCursor
        from psycopg.rows import tuple_row

        async with AsyncRawCursor(self.raw, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, values or None)
            return await cursor.fetchall() if cursor.description is not None else []


class AsyncpgSession(NamedTuple):
    raw: Any
    dialect: Dialect = "postgresql"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return [tuple(row) for row in await self.raw.fetch(statement, *values)]


def bound_to(storage: Storage, given: Any) -> Bound:
    """The verbs of a storage inside the user's own transaction. Raises Unsupported if the storage has no
    transactions."""
    found = transactional(storage, "within=", "use SQLite or PostgreSQL, or enqueue after your commit")
    return found.within(given)


async def session_of(given: Any, dialect: Dialect, storage: str) -> Session:
    """The user's transaction, checked so that our statements become part of it.

    storage  the name of the storage, for the errors
    Raises BadSession if it is no session, is closed, commits by itself, or has another dialect.
    """
    names = class_names(given)
    if not names.isdisjoint(SCOPED):
        given = given()
        names = class_names(given)
    raw, how = given, f"a {type(given).__name__}"
    if not names.isdisjoint(DJANGO):
        raw, how = _of_django(given), "Django's connection"
    elif not names.isdisjoint(SYNC):
        connection = given if "sqlalchemy.engine.base Connection" in names else given.connection()
        raw = connection.connection.driver_connection
    elif not names.isdisjoint(ASYNC):
        raw = await _of_async_alchemy(given, names)
    session = _checked(raw, how)
    if session.dialect != dialect:
        raise BadSession(how, f"its database is {session.dialect}, and the jobs are in {storage}")
    return session


def is_async(given: Any) -> bool:
    """Whether the session belongs to an event loop, so that a plain thread cannot use it."""
    names = class_names(given)
    kinds = (*ASYNC, *ASYNCPG, "psycopg AsyncConnection", SCOPED[1], "aiosqlite.core Connection")
    return not names.isdisjoint(kinds)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop. Raises BadSession if it would wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    work.close()
    raise BadSession(
        "the given session",
        "a middleware or an asyncio connection waits, and a plain thread has no event loop for that; use `await "
        "app.enqueue(..., within=...)`",
    )


def class_names(given: Any) -> frozenset[str]:
    return frozenset(f"{kind.__module__} {kind.__qualname__}" for kind in type(given).__mro__)


def _of_django(given: Any) -> Any:
    given.ensure_connection()
    if not given.in_atomic_block:
        raise BadSession("Django's connection", "it has no transaction: enqueue inside `with transaction.atomic():`")
    if given.needs_rollback:
        raise BadSession("Django's connection", "its transaction has failed and will be rolled back")
    return given.connection


async def _of_async_alchemy(given: Any, names: frozenset[str]) -> Any:
    connection = given if ASYNC[1] in names else await given.connection()
    raw = (await connection.get_raw_connection()).driver_connection
    if not class_names(raw).isdisjoint(ASYNCPG) and not raw.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins the transaction with its first statement
    return raw


def _checked(raw: Any, how: str) -> Session:
    names = class_names(raw)
    if isinstance(raw, sqlite3.Connection):
        return _sqlite(raw, how)
    if "psycopg Connection" in names or "psycopg AsyncConnection" in names:
        _check_psycopg(raw, how)
        return PsycopgSession(raw) if "psycopg Connection" in names else AsyncPsycopgSession(raw)
    if not names.isdisjoint(ASYNCPG):
        if raw.is_closed():
            raise BadSession(how, "it is closed")
        if not raw.is_in_transaction():
            raise BadSession(how, "it has no transaction: enqueue inside `async with connection.transaction():`")
        return AsyncpgSession(raw)
    kind = type(raw)
    raise BadSession(how, f"{kind.__module__}.{kind.__qualname__} is not supported; give {KNOWN}")


def _sqlite(raw: sqlite3.Connection, how: str) -> Session:
    try:
        if not raw.in_transaction:
            if raw.isolation_level is None or getattr(raw, "autocommit", None) is True:
                raise BadSession(
                    how, 'it is in autocommit mode: begin a transaction first (`execute("BEGIN IMMEDIATE")`)'
                )
            raw.execute("SELECT 1")
    except sqlite3.ProgrammingError as error:  # closed, or made in another thread
        raise BadSession(how, str(error)) from error
    return SqliteSession(raw)


def _check_psycopg(raw: Any, how: str) -> None:
    if raw.closed:
        raise BadSession(how, "it is closed")
    status = raw.info.transaction_status.name
    if status == "INERROR":
        raise BadSession(how, "its transaction has failed: roll it back first")
    if status == "ACTIVE":
        raise BadSession(how, "another statement is running on it")
    if status == "IDLE" and raw.autocommit:
        raise BadSession(how, "it is in autocommit mode: enqueue inside `with connection.transaction():`")
