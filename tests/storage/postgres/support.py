"""Empty schemas for tests: creating one takes 0.1 s, so a schema is emptied after its test and used again."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.servers import postgres
from tests.waiting import until
from treadle.core.model import Claim, NewJob, Outcome, Record, State
from treadle.storage.contract import Storage

_numbers = itertools.count()
_used: list[str] = []

# In one round trip. Truncating a table costs more than deleting a few rows, but many dead rows would slow later tests
# down.
EMPTY = sql.SQL("""DO $$
DECLARE
    known regclass;
    rows bigint;
BEGIN
    FOR known IN SELECT oid FROM pg_class WHERE relnamespace = {schema}::regnamespace AND relkind = 'r'
        AND relname NOT IN ('migration', 'function_set')
    LOOP
        EXECUTE format('DELETE FROM %s', known);
        GET DIAGNOSTICS rows = ROW_COUNT;
        IF rows > 1000 THEN
            EXECUTE format('TRUNCATE %s', known);
        END IF;
    END LOOP;
END $$""")


@functools.cache
def admin() -> psycopg.Connection[Any]:
    """The tests' own connection to the database that they share."""
    made = psycopg.connect(postgres.url(), autocommit=True)
    atexit.register(made.close)
    return made


async def blocked_by(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Until another session waits for a lock of this one."""
    ask, pid = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", connection.info.backend_pid
    await until(lambda: admin().execute(ask, (pid,)).fetchone() is not None, "a session that waits for a lock")


def url_of(schema: str, **options: object) -> str:
    words = "".join(f"&{name}={quote(str(value))}" for name, value in options.items())
    return f"{postgres.url()}?schema={quote(schema)}{words}"


def take_schema() -> str:
    """The name of an empty schema, or of one that does not exist yet."""
    if not _used:
        return f"t{os.getpid()}_{next(_numbers)}"
    schema = _used.pop()
    admin().execute(EMPTY.format(schema=sql.Literal(schema)))
    return schema


def give_back(schema: str) -> None:
    _used.append(schema)


@contextmanager
def a_schema() -> Iterator[str]:
    schema = take_schema()
    yield schema
    give_back(schema)  # not after a failure, so that its contents can be examined


def job(id: str, **options: object) -> NewJob:
    return NewJob(id=id, **{"task": "t", **options})  # type: ignore[arg-type]


def done(row: Record) -> Outcome:
    return Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, attempt=1)


async def life(storage: Storage, id: str) -> None:
    """Enqueue, claim, settle and read jobs."""
    await storage.enqueue([job(id)])
    claimed = await storage.claim(Claim(worker=f"w#{id}", queues=(("default", 9),), limit=9))
    assert [row.id for row in claimed.records] == [id]
    assert [each.status for each in await storage.settle([done(row) for row in claimed.records])] == ["applied"]
    [row] = await storage.get([id])
    assert row is not None
    assert row.state is State.SUCCEEDED
