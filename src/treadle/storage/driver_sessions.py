"""One class for each database driver: runs our statements on a connection of that driver, in its open transaction.

Imports no driver that the user has not imported. A driver is recognised by the name of its connection class.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from treadle.core.errors import BadSession

T = TypeVar("T")
Row = tuple[Any, ...]
Dialect = Literal["sqlite", "postgresql", "mysql"]

ASYNCPG: Final = "asyncpg.connection Connection", "asyncpg.pool PoolConnectionProxy"
PSYCOPG: Final = "psycopg Connection"
ASYNC_PSYCOPG: Final = "psycopg AsyncConnection"
PSYCOPG2: Final = "psycopg2.extensions connection"
AIOSQLITE: Final = "aiosqlite.core Connection"
MYSQL: Final = "pymysql.connections Connection", "MySQLdb.connections Connection"
IN_TRANSACTION: Final = 1  # bit of the server's status in MySQL's protocol
ASYNC_DRIVERS: Final = (*ASYNCPG, ASYNC_PSYCOPG, AIOSQLITE)
KNOWN: Final = (
    "a connection of sqlite3, aiosqlite, psycopg, psycopg2, asyncpg, pymysql or mysqlclient, a Session, AsyncSession "
    "or connection of SQLAlchemy, or Django's connection"
)
FAILED: Final = "its transaction has failed: roll it back first"
COMMITS: Final = "it is in autocommit mode: "
USE_BLOCK: Final = f"{COMMITS}enqueue inside `with connection.transaction():`"
BEGIN: Final = f'{COMMITS}begin a transaction first (`execute("BEGIN IMMEDIATE")`)'


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
        """Run one statement, with ?1 ?2 ... (SQLite), $1 $2 ... (PostgreSQL) or %s (MySQL) for its values; return its
        rows as tuples. Raises the errors of the driver. It awaits nothing but asyncio drivers (see `at_once`).
        """
        ...


class FileSession(Session, Protocol):
    """A transaction on a SQLite file."""

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call the function with the sqlite3 connection, in the thread that the connection belongs to."""
        ...


class ServerSession(Session, Protocol):
    """A transaction on a PostgreSQL server."""

    @property
    def encoding(self) -> str:
        """Its client encoding, in PostgreSQL's spelling."""
        ...

    @property
    def place(self) -> DatabaseAddress | None:
        """The database that the user's code named; None: the driver does not report it."""
        ...

    @property
    def identity(self) -> object:
        """An object that lives as long as the connection."""
        ...


class DatabaseAddress(NamedTuple):
    """A database of a server, as a client names it."""

    host: str
    port: int
    database: str


# --- SQLite


def plain_cursor(raw: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor that returns tuples, whatever row factory the user has set."""
    cursor = raw.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    return cursor


@contextmanager
def plain_texts(raw: sqlite3.Connection) -> Iterator[None]:
    """While our statements run on the user's connection, text is str, whatever text factory the user has set."""
    theirs, raw.text_factory = raw.text_factory, str
    try:
        yield
    finally:
        raw.text_factory = theirs


def _run_on_file(raw: sqlite3.Connection, statement: str, values: Sequence[object]) -> list[Row]:
    with plain_texts(raw):
        return plain_cursor(raw).execute(statement, tuple(values)).fetchall()


class SqliteSession(NamedTuple):
    raw: sqlite3.Connection
    dialect: Dialect = "sqlite"

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self.raw)

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return _run_on_file(self.raw, statement, values)


class AiosqliteSession(NamedTuple):
    """aiosqlite runs every call in one thread of the connection. `_execute` is how its own methods get there: one trip
    to that thread runs all statements of a verb."""

    raw: Any
    dialect: Dialect = "sqlite"

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        answer: T = await self.raw._execute(lambda: work(self.raw._conn))
        return answer

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return await self.call(lambda raw: _run_on_file(raw, statement, values))


# --- PostgreSQL


class LibpqConnection(NamedTuple):
    """A connection of psycopg or psycopg2, both of which show what libpq knows in `info`."""

    raw: Any
    dialect: Dialect = "postgresql"

    @property
    def encoding(self) -> str:
        return self.raw.info.parameter_status("client_encoding") or "UTF8"

    @property
    def place(self) -> DatabaseAddress | None:
        return DatabaseAddress(self.raw.info.host, self.raw.info.port, self.raw.info.dbname)

    @property
    def identity(self) -> object:
        return self.raw


class PsycopgSession(LibpqConnection):
    __slots__ = ()

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        from psycopg import RawCursor
        from psycopg.rows import tuple_row

        with RawCursor(self.raw, row_factory=tuple_row) as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description is not None else []


class AsyncPsycopgSession(LibpqConnection):
    __slots__ = ()

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        from psycopg import AsyncRawCursor
        from psycopg.rows import tuple_row

        async with AsyncRawCursor(self.raw, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, values or None)
            return await cursor.fetchall() if cursor.description is not None else []


class Psycopg2Session(LibpqConnection):
    """psycopg2 has no parameters of the server: statements are sent with literals, in UTF-8. Its codec stays that of
    the connection, so texts come back as bytes."""

    __slots__ = ()

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        from psycopg2 import extensions as pg  # type: ignore[import-untyped]

        with pg.connection.cursor(self.raw, cursor_factory=pg.cursor) as cursor:
            cursor.string_types = {
                kind: caster for caster in (pg.FLOAT, pg.INTEGER, pg.LONGINTEGER, pg.BOOLEAN) for kind in caster.values
            }
            for kind in pg.UNICODE.values:
                cursor.string_types[kind] = pg.BYTES
            cursor.execute(with_literals(statement, values))
            rows = cursor.fetchall() if cursor.description is not None else []
        return [tuple([cell.decode() if isinstance(cell, bytes) else cell for cell in row]) for row in rows]


class AsyncpgSession(NamedTuple):
    raw: Any
    dialect: Dialect = "postgresql"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return [tuple(row) for row in await self.raw.fetch(statement, *values)]

    @property
    def encoding(self) -> str:
        return str(self.raw.get_settings().client_encoding).upper().replace("-", "") or "UTF8"

    @property
    def place(self) -> DatabaseAddress | None:
        own = self.identity
        address, database = getattr(own, "_addr", None), getattr(getattr(own, "_params", None), "database", None)
        if isinstance(address, str):  # a Unix socket; libpq names its folder
            folder, _, port = address.rpartition("/.s.PGSQL.")
            address = folder, port
        if not isinstance(address, tuple) or len(address) != 2 or not database:
            return None  # another version of asyncpg: these are private
        return DatabaseAddress(str(address[0]), int(address[1]), str(database))

    @property
    def identity(self) -> object:
        return getattr(self.raw, "_con", None) or self.raw  # a pool makes a new proxy each time


# --- MySQL and MariaDB


class MySQLSession(NamedTuple):
    raw: Any
    dialect: Dialect = "mysql"

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = self.raw.cursor(_plain_mysql_cursor(self.raw))
        try:
            cursor.execute(statement, tuple(values))
            return list(cursor.fetchall()) if cursor.description is not None else []
        finally:
            cursor.close()


def _plain_mysql_cursor(raw: Any) -> Any:
    """The class of cursors that return tuples; the user may have set another one."""
    if type(raw).__module__.startswith("pymysql"):
        from pymysql.cursors import Cursor as Plain  # type: ignore[import-untyped]
    else:
        from MySQLdb.cursors import Cursor as Plain  # type: ignore[import-not-found,import-untyped,unused-ignore]
    return Plain


def with_literals(statement: str, values: Sequence[object]) -> bytes:
    """The statement with its $1, $2 ... replaced by literals. Raises ValueError for a text with a NUL, which PostgreSQL
    has no literal for."""
    parts = statement.split("$")
    sent = [parts[0].encode()]
    for part in parts[1:]:
        digits = len(part) - len(part.lstrip("0123456789"))
        sent += [_literal(values[int(part[:digits]) - 1]) if digits else b"$", part[digits:].encode()]
    return b"".join(sent)


def _literal(value: object) -> bytes:
    """A value as an E'...' string: it means the same with every setting of the server. The statement casts it."""
    if value is None:
        return b"NULL"
    text = ("t" if value else "f") if isinstance(value, bool) else value if isinstance(value, str) else repr(value)
    if "\0" in text:
        raise ValueError("a text for PostgreSQL contains a NUL character")
    return b"E'" + text.encode().replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"


# --- from a connection to its class


def class_names(instance: Any) -> frozenset[str]:
    """The full names of the classes of an object: "module name"."""
    return frozenset(f"{kind.__module__} {kind.__qualname__}" for kind in type(instance).__mro__)


async def session_on(raw: Any, how: str) -> Session:
    """The session for a driver's connection. `how` names the connection in errors.

    Raises BadSession if it is closed, commits by itself, or its transaction has failed.
    """
    names = class_names(raw)
    if isinstance(raw, sqlite3.Connection):
        return await _checked_file(SqliteSession(raw), how)
    if AIOSQLITE in names:
        return await _checked_file(AiosqliteSession(raw), how)
    for known, check, kind in SERVERS:
        if not names.isdisjoint(known):
            check(raw, how)
            return kind(raw)
    raise BadSession(how, f"{type(raw).__module__}.{type(raw).__qualname__} is not supported; give {KNOWN}")


async def _checked_file(session: FileSession, how: str) -> Session:
    def check(raw: sqlite3.Connection) -> None:
        if not raw.in_transaction:
            if raw.isolation_level is None or getattr(raw, "autocommit", None) is True:
                raise BadSession(how, BEGIN)
            raw.execute("SELECT 1")

    try:
        await session.call(check)
    except sqlite3.ProgrammingError as error:  # closed, or made in another thread
        raise BadSession(how, str(error)) from error
    except BadSession:
        raise
    except ValueError as error:  # how aiosqlite says that it is closed
        raise BadSession(how, "it is closed") from error
    return session


def _check_psycopg(raw: Any, how: str) -> None:
    if raw.closed:
        raise BadSession(how, "it is closed")
    status = raw.info.transaction_status.name
    if status == "INERROR":
        raise BadSession(how, FAILED)
    if status == "ACTIVE":
        raise BadSession(how, "another statement is running on it")
    if status == "IDLE" and raw.autocommit:
        raise BadSession(how, USE_BLOCK)


def _check_psycopg2(raw: Any, how: str) -> None:
    from psycopg2 import extensions as pg

    if raw.closed:
        raise BadSession(how, "it is closed")
    if raw.async_:
        raise BadSession(how, "it was made with async=1: use a connection without it, or psycopg 3 or asyncpg")
    if raw.status == pg.STATUS_PREPARED:
        raise BadSession(how, "its transaction is prepared for a two-phase commit: enqueue before that")
    status = raw.get_transaction_status()
    if status == pg.TRANSACTION_STATUS_INERROR:
        raise BadSession(how, FAILED)
    if status == pg.TRANSACTION_STATUS_ACTIVE:
        raise BadSession(how, "another statement is running on it")
    if status == pg.TRANSACTION_STATUS_UNKNOWN:
        raise BadSession(how, "its server is gone")
    if status == pg.TRANSACTION_STATUS_IDLE and raw.autocommit:
        raise BadSession(how, f'{COMMITS}set `autocommit = False`, or begin a transaction first (`execute("BEGIN")`)')


def _check_asyncpg(raw: Any, how: str) -> None:
    if raw.is_closed():
        raise BadSession(how, "it is closed")
    if not raw.is_in_transaction():
        raise BadSession(how, "it has no transaction: enqueue inside `async with connection.transaction():`")


def _check_mysql(raw: Any, how: str) -> None:
    if not raw.open:
        raise BadSession(how, "it is closed")
    # mysqlclient does not show the status, so an autocommit connection of it is refused inside `begin()` too
    status = getattr(raw, "server_status", 0)
    if raw.get_autocommit() and not status & IN_TRANSACTION:
        raise BadSession(how, f"{COMMITS}begin a transaction first (`connection.begin()`)")


SERVERS: Final[tuple[tuple[Sequence[str], Callable[[Any, str], None], Callable[[Any], Session]], ...]] = (
    ((PSYCOPG,), _check_psycopg, PsycopgSession),
    ((ASYNC_PSYCOPG,), _check_psycopg, AsyncPsycopgSession),
    ((PSYCOPG2,), _check_psycopg2, Psycopg2Session),
    (ASYNCPG, _check_asyncpg, AsyncpgSession),
    (MYSQL, _check_mysql, MySQLSession),
)
