"""Reads rows of jobs over the connection of the caller, so that it sees the jobs of its own transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.db import transaction

from treadle.app import App
from treadle.core.model import Record
from treadle.integrations.django.connections import tests_of
from treadle.integrations.django.database_app import DatabaseApp, connection_of
from treadle.integrations.django.joining import in_test_memory
from treadle.storage import Carried, Chunk, MemoryStorage, MoveState, at_once


def read(store: DatabaseApp, id: str) -> Record | None:
    """The row of a job; within the caller's transaction if the jobs are in its database, so that it sees the jobs that
    it has stored itself."""
    core = store.app._core
    if store.outbox is not None and (held := in_outbox(store, id)) is not None:
        return held
    if store.database is None:
        [row] = store.app.sync.call(core.client.get([id]))
        return row
    connection = connection_of(store)
    with nullcontext(connection) if in_test_memory(store.app) else _reading(connection) as session:
        [row] = at_once(core.bound(session).get([id]))
    return row


def in_outbox(store: DatabaseApp, id: str) -> Record | None:
    """The row of a job that is not delivered yet."""
    with transaction.atomic(using=store.outbox):
        [row] = at_once(store.app._core.bound(connection_of(store)).get([id]))
    return row


def in_test_case(store: DatabaseApp) -> bool:
    """Whether this thread is in the transaction of a `TestCase`, whose jobs no other connection can see."""
    return store.database is not None and bool(tests_of(connection_of(store)))


def copy_of_test(store: DatabaseApp) -> App:
    """An App with a copy of the jobs that this connection sees: it is in a `TestCase`, or the only one to a database in
    memory. Changes of it change the copy only."""
    connection = connection_of(store)
    tables = ["job"]
    if connection.vendor == "postgresql":
        schema = connection.ops.quote_name(store.options.schema)
        tables = [f"{schema}.job", f"{schema}.ended"]
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT id FROM {table}" for table in tables))
        ids = [id for (id,) in cursor.fetchall()]
        rows = at_once(store.app._core.bound(connection).get(ids))
    copy = MemoryStorage()
    jobs = tuple(Carried(record=row) for row in rows if row is not None)
    at_once(copy.load(Chunk(jobs), MoveState(role="aborted", other="", move="")))
    return App(storage=copy, **store.options.texts)


@contextmanager
def _reading(connection: Any) -> Iterator[Any]:
    """A transaction to read in. On SQLite a new one is deferred, whatever `transaction_mode` says: a reader needs no
    write lock."""
    if connection.in_atomic_block:
        yield connection
    elif connection.vendor == "sqlite" and connection.get_autocommit():
        connection.ensure_connection()
        connection.connection.execute("BEGIN")
        try:
            yield connection.connection
        finally:
            connection.connection.execute("ROLLBACK")
    else:
        with transaction.atomic(using=connection.alias):
            yield connection
