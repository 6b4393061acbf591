"""The verbs inside transactions of users, with every supported driver and framework."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.drivers import POSTGRES, Driver, Using
from tests.storage.postgres import support
from tests.storage.postgres.support import done, job, life
from tests.waiting import until
from treadle.core.model import Claim, Outcome, State
from treadle.errors import BadSession, KeyHeld, StorageError, UnknownUpstream
from treadle.storage.postgres import PostgresStorage
from treadle.storage.postgres.statements import revision
from treadle.storage.user_session import at_once
from treadle_testkit.shows import shows

Use = Callable[[Any], Coroutine[Any, Any, None]]


class Rollback(Exception):
    """Raised so that the transaction does not commit."""


async def use_in(way: Driver, url: str, use: Use) -> None:
    """Use a transaction that has written a row, and commit it."""

    async def scenario(using: Using) -> None:
        await using.execute("INSERT INTO own VALUES ('x')")
        await use(using.given)
        await using.commit()

    await way.run(url, scenario)


@pytest.fixture
async def storage() -> AsyncIterator[PostgresStorage]:
    database = support.postgres.database()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE own (name text)")
    made = PostgresStorage(database)
    await made.open()
    yield made
    await made.close()


def url_of(storage: PostgresStorage) -> str:
    return storage._address.shown


def own_rows(storage: PostgresStorage) -> int:
    with psycopg.connect(url_of(storage)) as connection:
        return len(connection.execute("SELECT FROM own").fetchall())


OUR_FUNCTIONS = """
SELECT 'DROP FUNCTION ' || string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
WHERE p.pronamespace = 'treadle'::regnamespace AND right(p.proname, 8) = %s
"""


def use_of(storage: PostgresStorage, words: str) -> Use:
    """Enqueueing is refused with these words."""

    async def use(given: Any) -> None:
        with pytest.raises(StorageError, match=words):
            await storage.within(given).enqueue([job("a")])

    return use


def sessions(url: str) -> int:
    """How many sessions Treadle has in the database."""
    with psycopg.connect(url) as connection:
        [(found,)] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'treadle'"
        ).fetchall()
    return int(found)


def visible(storage: PostgresStorage, id: str) -> bool:
    with psycopg.connect(url_of(storage)) as connection:
        return connection.execute("SELECT FROM treadle.job WHERE id = %s", (id,)).fetchone() is not None


@shows("jobs, outcomes and their notification commit or roll back with a PostgreSQL transaction")
@pytest.mark.parametrize("way", POSTGRES, ids=str)
async def test_a_job_is_committed_or_rolled_back_with_the_transaction(storage: PostgresStorage, way: Driver) -> None:
    """A worker gets the job when the transaction commits."""
    held = await storage.enqueue([job("held", key="k", queue="other"), job("up", queue="other")])

    async def use(given: Any) -> None:
        bound = storage.within(given)
        [row] = await bound.enqueue([job("a")])
        assert row.state is State.READY
        assert await bound.enqueue([job("b", after=("up", "a"), limits=(("l", 1),), labels=("x",))])
        with pytest.raises(KeyHeld):
            await bound.enqueue([job("c"), job("d", key="k", key_conflict="raise")])
        assert [row and row.id for row in await bound.get(["a", "b", "c"])] == ["a", "b", None]
        [told] = await bound.settle(
            [Outcome(id="held", version=held[0].version, state=State.CANCELLED, reason="asked")]
        )
        assert told.status == "applied"
        assert not visible(storage, "a")

    async def use_and_fail(given: Any) -> None:
        await use(given)
        raise Rollback

    with pytest.raises(Rollback):
        await use_in(way, url_of(storage), use_and_fail)
    assert [row.state if row else None for row in await storage.get(["held", "a", "b"])] == [State.READY, None, None]
    assert own_rows(storage) == 0

    watch = asyncio.create_task(storage.watch(["queue:default"], 10))
    await asyncio.sleep(0)
    await use_in(way, url_of(storage), use)
    assert await watch == {"queue:default"}
    assert own_rows(storage) == 1
    found = [row.state if row else None for row in await storage.get(["held", "a", "b", "c"])]
    assert found == [State.CANCELLED, State.READY, State.WAITING, None]
    claimed = await storage.claim(Claim(worker="w#1", queues=(("default", 9),), limit=9))
    assert [row.id for row in claimed.records] == ["a"]


@shows("an error of an enqueue leaves the PostgreSQL transaction intact")
@pytest.mark.parametrize("way", POSTGRES, ids=str)
async def test_an_error_of_an_enqueue_leaves_the_transaction_usable(storage: PostgresStorage, way: Driver) -> None:
    async def use(given: Any) -> None:
        bound = storage.within(given)
        with pytest.raises(UnknownUpstream):
            await bound.enqueue([job("a", after=("nobody",))])
        await bound.enqueue([job("b")])

    await use_in(way, url_of(storage), use)
    assert own_rows(storage) == 1
    assert [row and row.id for row in await storage.get(["a", "b"])] == [None, "b"]


@pytest.mark.parametrize("way", POSTGRES, ids=str)
async def test_another_database_is_refused(storage: PostgresStorage, way: Driver) -> None:
    """A database without our schema, and one with a schema of its own."""
    other = support.postgres.database()
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("CREATE TABLE own (name text)")

    async def use(given: Any) -> None:
        with pytest.raises(BadSession, match="another database"):
            await storage.within(given).enqueue([job("a")])

    await use_in(way, other, use)
    second = PostgresStorage(other)
    await second.open()
    await use_in(way, other, use)
    await life(second, "a")
    await second.close()


@pytest.mark.parametrize("way", POSTGRES, ids=str)
async def test_a_storage_that_is_not_open_joins_a_transaction(storage: PostgresStorage, way: Driver) -> None:
    """A web process that only enqueues needs no pool, and leaves no session that would keep the database from being
    dropped."""
    await storage.close()

    async def use(given: Any) -> None:
        assert [row.id for row in await storage.within(given).enqueue([job("a")])] == ["a"]

    await use_in(way, url_of(storage), use)
    await until(lambda: not sessions(url_of(storage)), "the end of the session at the server")
    await storage.open()
    assert [row and row.id for row in await storage.get(["a"])] == ["a"]


async def test_the_first_enqueue_needs_no_open_storage(storage: PostgresStorage) -> None:
    """In an event loop, and in a thread without one."""
    closed = PostgresStorage(url_of(storage))

    def in_a_thread() -> None:
        with psycopg.connect(url_of(storage)) as connection:
            at_once(closed.within(connection).enqueue([job("a")]))

    await asyncio.to_thread(in_a_thread)
    closed = PostgresStorage(url_of(storage))
    async with await psycopg.AsyncConnection.connect(url_of(storage)) as connection:
        await closed.within(connection).enqueue([job("b")])
    assert [row and row.id for row in await storage.get(["a", "b"])] == ["a", "b"]


@pytest.mark.parametrize("way", POSTGRES, ids=str)
async def test_a_storage_that_is_not_open_is_refused_in_another_database(storage: PostgresStorage, way: Driver) -> None:
    other, closed = support.postgres.database(), PostgresStorage(url_of(storage))
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("CREATE TABLE own (name text)")
    second = PostgresStorage(other)
    await second.open()
    await second.close()

    async def use(given: Any) -> None:
        with pytest.raises(BadSession, match="another database"):
            await closed.within(given).enqueue([job("a")])

    await use_in(way, other, use)


@pytest.mark.parametrize("way", POSTGRES, ids=str)
async def test_the_error_of_a_missing_schema_names_the_command(way: Driver) -> None:
    url = support.postgres.database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE own (name text)")
    closed = PostgresStorage(url)
    await use_in(way, url, use_of(closed, "treadle storage migrate"))
    await closed.open()
    await closed.close()
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM treadle.function_set")
        [(drop,)] = connection.execute(OUR_FUNCTIONS, (revision(),)).fetchall()
        connection.execute(drop)
    await use_in(way, url, use_of(PostgresStorage(url), "another version"))


@shows("a PostgreSQL connection that commits by itself is refused")
async def test_connections_that_commit_by_themselves_are_refused(storage: PostgresStorage) -> None:
    connection = psycopg.connect(url_of(storage), autocommit=True)
    with pytest.raises(BadSession, match="is in autocommit mode"):
        await storage.within(connection).enqueue([job("a")])
    connection.close()
    with pytest.raises(BadSession, match="closed"):
        await storage.within(connection).enqueue([job("a")])
    other = await asyncpg.connect(url_of(storage))
    with pytest.raises(BadSession, match="no transaction"):
        await storage.within(other).enqueue([job("a")])
    await other.close()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_an_old_snapshot_is_refused(storage: PostgresStorage, level: str) -> None:
    """It does not see jobs that have ended since, so a new job would wait for them. Reading is allowed."""
    await storage.enqueue([job("a")])
    with psycopg.connect(url_of(storage)) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(BadSession, match="read committed"):
            await storage.within(connection).enqueue([job("b", after=("a",))])
        assert [row and row.id for row in await storage.within(connection).get(["a", "b"])] == ["a", None]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_transaction_for_a_run(storage: PostgresStorage, sync: bool) -> None:
    """The function's own writes and the ending of its job are stored together or not at all."""

    async def write(raw: Any) -> None:
        written = raw.execute("INSERT INTO own VALUES ('x')")
        if not sync:
            await written

    await storage.enqueue([job("a")])
    [row] = (await storage.claim(Claim(worker="w#1"))).records
    undone = await storage.begin(sync)
    await write(undone.raw)
    await undone.bound.settle([done(row)])
    await undone.roll_back()
    await undone.roll_back()
    with pytest.raises(psycopg.OperationalError):
        await write(undone.raw)
    await undone.close()
    assert own_rows(storage) == 0
    made = await storage.begin(sync)
    await write(made.raw)
    [told] = await made.bound.settle([done(row)])
    assert told.status == "applied"
    await made.bound.enqueue([job("next")])
    assert await storage.get(["next"]) == [None]
    await made.commit()
    await made.roll_back()
    await made.close()
    assert own_rows(storage) == 1
    assert [row and row.state for row in await storage.get(["a", "next"])] == [State.SUCCEEDED, State.READY]


async def test_a_roll_back_that_is_cancelled_closes_the_connection(
    storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the user's row locks stay until the connection is garbage."""
    begun = asyncio.Event()

    async def rollback(connection: psycopg.AsyncConnection[Any]) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(psycopg.AsyncConnection, "rollback", rollback)
    made = await storage.begin(sync=False)
    closing = asyncio.create_task(made.close())
    await begun.wait()
    closing.cancel()
    await asyncio.wait([closing])
    assert (closing.cancelled(), made.raw.closed) == (True, True)


async def test_a_cancelled_roll_back_in_a_thread_is_carried_out(storage: PostgresStorage) -> None:
    """Also if no thread was free when it was cancelled."""
    made, free = await storage.begin(sync=True), threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    busy = asyncio.create_task(asyncio.to_thread(free.wait))
    closing = asyncio.create_task(made.close())
    await asyncio.sleep(0)  # both have begun, and the only thread is busy
    closing.cancel()
    await asyncio.wait([closing])
    assert (closing.cancelled(), made.raw.closed) == (True, False)
    free.set()
    await busy
    await asyncio.to_thread(int)  # runs after everything that waited for the thread
    assert made.raw.closed


@pytest.mark.parametrize("way", POSTGRES[:4], ids=str)
async def test_dropped_functions_are_created_again(way: Driver) -> None:
    """Newer versions keep the functions of the last few. A process that only stores jobs with within= may outlive its
    own."""
    with support.a_schema() as schema:
        storage = PostgresStorage(support.url_of(schema))
        await storage.open()
        support.admin().execute("CREATE TABLE IF NOT EXISTS own (x text)")
        found = support.admin().execute(
            "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
            " WHERE n.nspname = %s AND right(p.proname, 8) = %s",
            (schema, revision()),
        )
        for (function,) in found.fetchall():
            support.admin().execute(f"DROP FUNCTION {function}".encode())
        support.admin().execute(f"DELETE FROM {schema}.function_set".encode())

        async def use(session: Any) -> None:
            await storage.within(session).enqueue([job("a"), job("b", key="k")])

        await use_in(way, support.postgres.url(), use)
        assert [row and row.id for row in await storage.get(["a", "b"])] == ["a", "b"]
        await storage.close()


async def test_a_backup_put_in_the_place_of_the_schema_under_a_running_process() -> None:
    """Its transactions use the database that the storage is in now."""
    with support.a_schema() as schema:
        storage = PostgresStorage(support.url_of(schema))
        await storage.open()
        support.admin().execute(f"DROP SCHEMA {schema} CASCADE".encode())
        await storage.enqueue([job("pool")])
        with psycopg.connect(support.postgres.url()) as theirs:
            await storage.within(theirs).enqueue([job("within")])
        assert [row and row.id for row in await storage.get(["pool", "within"])] == ["pool", "within"]
        await storage.close()
