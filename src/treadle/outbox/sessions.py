"""The user's own transaction, on which the rows of an outbox are written.

SQLite and PostgreSQL sessions are those of the storages; MySQL's are added here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from treadle.errors import BadSession
from treadle.outbox.address import Address
from treadle.storage.user_session import ASYNC, DJANGO, SCOPED, SYNC, class_names, session_of

Row = tuple[Any, ...]
MYSQL: Final = "pymysql.connections Connection", "MySQLdb.connections Connection"
IN_TRANSACTION: Final = 1  # bit of the server status in MySQL's protocol


class Session(Protocol):
    """An open transaction of the user."""

    @property
    def raw(self) -> Any: ...
    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]: ...


class MySQLSession(NamedTuple):
    raw: Any

    async def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = self.raw.cursor(_plain_cursor(self.raw))
        try:
            cursor.execute(statement, tuple(values))
            return list(cursor.fetchall()) if cursor.description is not None else []
        finally:
            cursor.close()


def _plain_cursor(raw: Any) -> Any:
    """The class of cursors that return tuples; the user may have set another one."""
    if type(raw).__module__.startswith("pymysql"):
        from pymysql.cursors import Cursor

        return Cursor
    return None


async def session_on(given: Any, address: Address) -> Session:
    """The user's transaction on the database of the outbox. Raises BadSession if it is no session, is closed, commits
    by itself, or has another dialect."""
    if address.dialect != "mysql":
        return await session_of(given, address.dialect, address.database)
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
        return _checked(raw, how, begun=True)  # SQLAlchemy turns autocommit off
    elif not names.isdisjoint(ASYNC):
        raise BadSession(how, "asyncio drivers of MySQL are not supported; give a Session over pymysql or mysqlclient")
    return _checked(raw, how, begun=not names.isdisjoint(DJANGO))


def _of_django(given: Any) -> Any:
    given.ensure_connection()
    if not given.in_atomic_block:
        raise BadSession("Django's connection", "it has no transaction: enqueue inside `with transaction.atomic():`")
    if given.needs_rollback:
        raise BadSession("Django's connection", "its transaction has failed and will be rolled back")
    return given.connection


def _checked(raw: Any, how: str, begun: bool) -> Session:
    if class_names(raw).isdisjoint(MYSQL):
        kind = type(raw)
        words = f"{kind.__module__}.{kind.__qualname__} is no connection to MySQL; the outbox is in a MySQL database"
        raise BadSession(how, words)
    if not getattr(raw, "open", True):
        raise BadSession(how, "it is closed")
    status = getattr(raw, "server_status", IN_TRANSACTION)
    if not begun and raw.get_autocommit() and not status & IN_TRANSACTION:
        raise BadSession(how, "it is in autocommit mode: begin a transaction first (`connection.begin()`)")
    return MySQLSession(raw)


async def check_file(session: Session, address: Address) -> None:
    """Raise BadSession if a SQLite session has another file than the outbox."""
    for _, name, file in await session.run("PRAGMA database_list"):
        if name == "main" and not (file and os.path.exists(address.target) and os.path.samefile(file, address.target)):
            raise BadSession(
                f"a connection to {file or 'a database in memory'}",
                f"the outbox is in {address.target}, and a transaction cannot span two files",
            )
