"""Finds the driver's connection in what users pass as `within=`: sessions of SQLAlchemy, Django's connection, drivers.

The framework is recognised by the name of its classes, so nothing is imported that the user has not imported.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from treadle.core.errors import BadSession
from treadle.storage.capabilities import transactional
from treadle.storage.contract import Storage
from treadle.storage.driver_sessions import ASYNC_DRIVERS, ASYNCPG, Dialect, Session, class_names, session_on
from treadle.storage.optional_parts import Bound

T = TypeVar("T")

DJANGO: Final = "django.utils.connection ConnectionProxy", "django.db.backends.base.base BaseDatabaseWrapper"
SYNC: Final = "sqlalchemy.orm.session Session", "sqlalchemy.engine.base Connection"
ASYNC: Final = "sqlalchemy.ext.asyncio.session AsyncSession", "sqlalchemy.ext.asyncio.engine AsyncConnection"
SCOPED: Final = "sqlalchemy.orm.scoping scoped_session", "sqlalchemy.ext.asyncio.scoping async_scoped_session"
BEGIN_IN: Final = {
    "django": ': "OPTIONS": {"transaction_mode": "IMMEDIATE"} in DATABASES',
    "sqlalchemy": ', in a listener of the "begin" event of the engine',
}
DIALECTS: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL"}


def bound_to(storage: Storage, session: Any) -> Bound:
    """The verbs of a storage inside the user's own transaction. Raises Unsupported if the storage has no
    transactions."""
    able = transactional(
        storage,
        "within=",
        "give the app an Outbox(url of your database), use SQLite or PostgreSQL, or enqueue after your commit",
    )
    return able.within(session)


async def session_of(within: Any, dialect: Dialect, storage: str) -> Session:
    """The user's transaction, checked so that our statements become part of it.

    storage  the name of the storage, for the errors
    Raises BadSession if it is no session, is closed, commits by itself, or has another dialect.
    """
    names = class_names(within)
    if not names.isdisjoint(SCOPED):
        within = within()
        names = class_names(within)
    raw, how = within, f"a {type(within).__name__}"
    if not names.isdisjoint(DJANGO):
        raw, how = _of_django(within), "Django's connection"
    elif not names.isdisjoint((*SYNC, *ASYNC)):
        raw = await _of_sqlalchemy(within, names, how)
    session = await session_on(raw, how)
    if session.dialect != dialect:
        raise BadSession(how, f"its database is {DIALECTS[session.dialect]}, and the jobs are in {storage}")
    return session


def stale(session: Any) -> BadSession:
    """The error for a deferred transaction of SQLite that read before it wrote, while another connection committed."""
    package = type(session).__module__.partition(".")[0]
    return BadSession(
        "Django's connection" if package == "django" else f"a {type(session).__name__}",
        "another transaction changed data that it has read, so SQLite refuses its writes; roll back, and begin with "
        f"BEGIN IMMEDIATE{BEGIN_IN.get(package, '')}",
    )


def is_async(session: Any) -> bool:
    """Whether the session belongs to an event loop, so that a plain thread cannot use it."""
    names = class_names(session)
    return not names.isdisjoint((*ASYNC, *ASYNC_DRIVERS, SCOPED[1]))


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


def _of_django(session: Any) -> Any:
    session.ensure_connection()
    if not session.in_atomic_block:
        raise BadSession("Django's connection", "it has no transaction: enqueue inside `with transaction.atomic():`")
    if session.needs_rollback:
        raise BadSession("Django's connection", "its transaction has failed and will be rolled back")
    return session.connection


async def _of_sqlalchemy(session: Any, names: frozenset[str], how: str) -> Any:
    """The driver's connection of a session or a connection. SQLAlchemy must know of the transaction, or its commit
    would do nothing: a connection that has executed nothing yet begins one here."""
    from sqlalchemy.exc import InvalidRequestError

    try:
        if names.isdisjoint(ASYNC):
            connection = session.connection() if SYNC[0] in names else session
            if not connection.in_transaction():
                connection.begin()
            return connection.connection.driver_connection
        connection = await session.connection() if ASYNC[0] in names else session
        if not connection.in_transaction():
            await connection.begin()
        raw = (await connection.get_raw_connection()).driver_connection
        if not class_names(raw).isdisjoint(ASYNCPG) and not raw.is_in_transaction():
            await connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins it at the server with the first statement
    except InvalidRequestError as error:  # it is closed, failed, or has no database of its own
        raise BadSession(how, str(error)) from error
    return raw
