"""What users hand in as their own transaction, reduced to one thing: run this statement, answer its rows.

Without it each SQL storage would have to know every driver and framework. Nothing is imported that the user has not
imported: a session is known by the name of its class.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

from treadle.errors import BadSession, Unsupported
from treadle.storage.contract import Bound, Storage, Transactional

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
    """An open transaction of the user's. It is theirs to commit or roll back; nothing here ever does."""

    @property
    def dialect(self) -> Dialect:
        """What its database speaks."""
        ...

    @property
    def raw(self) -> Any:
        """The driver's own connection."""
        ...

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement, with ?1 ?2 ... (SQLite) or $1 $2 ... (PostgreSQL) for its values; its rows, as tuples.

        Errors are those of the driver. With a session that is not of asyncio it never waits (see `at_once`).
        """
        ...


class SqliteSession(NamedTuple):
    raw: sqlite3.Connection
    dialect: Dialect = "sqlite"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = self.raw.cursor(sqlite3.Cursor)
        cursor.row_factory = None  # whatever rows the user likes, ours are tuples
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


def transactional(storage: Storage, what: str, instead: str) -> Transactional:
    """The storage as one that can act inside transactions. Raises Unsupported: `what` it cannot do, what to do
    `instead`."""
    # Not isinstance, which from Python 3.12 on does not see what a wrapped storage hands on.
    if getattr(storage, "within", None) is None or getattr(storage, "begin", None) is None:
        raise Unsupported(type(storage).__name__, what, instead)
    return cast("Transactional", storage)


def bound_to(storage: Storage, given: Any) -> Bound:
    """The verbs of a storage inside the user's own transaction. Raises Unsupported where there is no such thing."""
    found = transactional(storage, "within=", "use SQLite or PostgreSQL, or enqueue after your commit")
    return found.within(given)


async def session_of(given: Any, dialect: Dialect, storage: str) -> Session:
    """The user's transaction, looked at closely enough to know that our statements will be part of it.

    storage  the name of the storage, for the errors
    Raises BadSession for what is no session, is closed, commits by itself, or speaks another dialect.
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
        raise BadSession(how, f"its database is {session.dialect}, the jobs live in {storage}")
    return session


def is_async(given: Any) -> bool:
    """Whether it belongs to an event loop, so that a plain thread cannot use it."""
    names = class_names(given)
    kinds = (*ASYNC, *ASYNCPG, "psycopg AsyncConnection", SCOPED[1], "aiosqlite.core Connection")
    return not names.isdisjoint(kinds)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that never waits, without an event loop. Raises BadSession if it would wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    work.close()
    raise BadSession(
        "what was given",
        "something on the way waits (a middleware, or a connection of asyncio), and a plain thread "
        "has no event loop to wait on; use `await app.enqueue(..., within=...)`",
    )


def class_names(given: Any) -> frozenset[str]:
    return frozenset(f"{kind.__module__} {kind.__qualname__}" for kind in type(given).__mro__)


def _of_django(given: Any) -> Any:
    given.ensure_connection()
    if not given.in_atomic_block:
        raise BadSession("Django's connection", "it is in no transaction: enqueue inside `with transaction.atomic():`")
    if given.needs_rollback:
        raise BadSession("Django's connection", "its transaction has failed and will be rolled back")
    return given.connection


async def _of_async_alchemy(given: Any, names: frozenset[str]) -> Any:
    connection = given if ASYNC[1] in names else await given.connection()
    raw = (await connection.get_raw_connection()).driver_connection
    if not class_names(raw).isdisjoint(ASYNCPG) and not raw.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins the transaction at its own first statement
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
            raise BadSession(how, "it is in no transaction: enqueue inside `async with connection.transaction():`")
        return AsyncpgSession(raw)
    kind = type(raw)
    raise BadSession(how, f"{kind.__module__}.{kind.__qualname__} is not known here; give {KNOWN}")


def _sqlite(raw: sqlite3.Connection, how: str) -> Session:
    try:
        if not raw.in_transaction:
            if raw.isolation_level is None or getattr(raw, "autocommit", None) is True:
                raise BadSession(how, 'it commits by itself: begin a transaction first (`execute("BEGIN IMMEDIATE")`)')
            raw.execute("SELECT 1")
    except sqlite3.ProgrammingError as error:  # closed, or of another thread
        raise BadSession(how, str(error)) from error
    return SqliteSession(raw)


def _check_psycopg(raw: Any, how: str) -> None:
    if raw.closed:
        raise BadSession(how, "it is closed")
    status = raw.info.transaction_status.name
    if status == "INERROR":
        raise BadSession(how, "its transaction has failed: roll it back first")
    if status == "ACTIVE":
        raise BadSession(how, "another statement runs on it")
    if status == "IDLE" and raw.autocommit:
        raise BadSession(how, "it commits by itself: enqueue inside `with connection.transaction():`")
