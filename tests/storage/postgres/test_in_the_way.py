"""Another program's open transaction holds locks: no call waits long for it, and no job is lost. Law 14."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from tests.storage.postgres import support
from tests.storage.postgres.support import done, job, life
from tests.waiting import until
from treadle import App, Retry, StorageUnavailable, Worker, current
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, HeartbeatResult, LeaseRenewal, Presence, Record, Settled, State
from treadle.storage.postgres import PostgresStorage

MOST = 60.0  # seconds; the open transaction lasts as long as the test waits, so only a hang takes so long


@pytest.fixture
def schema() -> Iterator[str]:
    with support.a_schema() as name:
        yield name


@pytest.fixture
async def storage(schema: str) -> AsyncIterator[PostgresStorage]:
    made = PostgresStorage(support.url_of(schema))
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def theirs(storage: PostgresStorage) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Another program's connection, in a transaction."""
    async with await psycopg.AsyncConnection.connect(support.postgres.url()) as connection:
        yield connection
        await connection.rollback()


async def claimed(storage: PostgresStorage, number: int, limit: int = 9) -> dict[str, Record]:
    found = await storage.claim(Claim(worker=f"w#{number}", limit=limit, queues=(("default", limit),)))
    return {row.job.id: row for row in found.records}


async def soon(storage: PostgresStorage, *rows: Record) -> list[Settled]:
    async with asyncio.timeout(MOST):
        return await storage.settle([done(row) for row in rows])


async def test_an_upstream_in_an_open_transaction(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    """It keeps its lease, and can end after they have committed; until then only its outcome is refused."""
    await storage.enqueue([job("a"), job("b")])
    rows = await claimed(storage, 1)
    await storage.within(theirs).enqueue([job("join", after=("a",))])
    renewals = [LeaseRenewal(row.job.id, row.version) for row in rows.values()]
    before = time.time()
    async with asyncio.timeout(MOST):
        assert (await storage.heartbeat(Presence(worker="w"), renewals, 90.0)).lost == set()
    [a] = await storage.get(["a"])
    assert a is not None
    assert a.due_at is not None
    assert a.due_at > before + 60
    first, second = await soon(storage, rows["a"], rows["b"])
    assert (first.status, second.status) == ("refused", "applied")
    assert "open transaction" in (first.reason or "")
    await theirs.commit()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert list(await claimed(storage, 2)) == ["join"]


async def test_an_upstream_in_a_transaction_that_is_rolled_back(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    await storage.enqueue([job("a")])
    rows = await claimed(storage, 1)
    await storage.within(theirs).enqueue([job("join", after=("a",))])
    await theirs.rollback()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert await storage.get(["join"]) == [None]


async def test_an_enqueue_waits_for_transactions_that_depend_on_its_id(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    """The call that stores it waits for the transactions of its dependents, so it cannot end before they are stored."""
    await storage.within(theirs).enqueue([job("join", after=("a",), wait_timeout=1_000.0)])
    storing = asyncio.create_task(storage.enqueue([job("a")]))
    await support.blocked_by(theirs)
    assert not storing.done()
    await theirs.commit()
    await storing
    rows = await claimed(storage, 1)
    assert list(rows) == ["a"]
    await soon(storage, rows["a"])
    assert list(await claimed(storage, 2)) == ["join"]


async def test_rows_locked_by_another_transaction(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str
) -> None:
    """They are not claimed and not lost, and can be settled when they are free; other jobs continue."""
    await storage.enqueue([job(id) for id in "abcd"])
    rows = await claimed(storage, 1, limit=2)
    await theirs.execute(f"SELECT 1 FROM {schema}.job WHERE id IN ('a', 'c') FOR UPDATE")  # type: ignore[arg-type]
    async with asyncio.timeout(MOST):
        assert list(await claimed(storage, 2)) == ["d"]
        renewals = [LeaseRenewal(row.job.id, row.version) for row in rows.values()]
        assert (await storage.heartbeat(Presence(worker="w"), renewals, 30.0)).lost == set()
    assert [settled.status for settled in await soon(storage, *rows.values())] == ["refused", "applied"]
    await theirs.rollback()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert list(await claimed(storage, 3)) == ["c"]


@pytest.mark.parametrize("how", ["locked", "key replaced"])
async def test_a_checkpoint_of_a_locked_row_is_stored_later(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str, how: str
) -> None:
    """The heartbeat names the job as not saved and stores the others of the call. Sent again later, its checkpoint is
    saved."""
    await storage.enqueue([job("a", key="k"), job("b"), job("c")])
    rows = await claimed(storage, 1)
    if how == "locked":
        await theirs.execute(f"SELECT 1 FROM {schema}.job WHERE id IN ('a', 'c') FOR UPDATE")  # type: ignore[arg-type]
    else:
        await storage.within(theirs).enqueue([job("newer", key="k", key_conflict="replace")])
    a, b = (LeaseRenewal(id, rows[id].version, checkpoints=(("step", "1"),)) for id in "ab")
    c = LeaseRenewal("c", rows["c"].version)
    async with asyncio.timeout(MOST):
        held = await storage.heartbeat(Presence(worker="w"), [a, b, c], 30.0)
    assert held == HeartbeatResult(unsaved=frozenset("ac" if how == "locked" else "a"))
    assert [row and row.checkpoints for row in await storage.get(["a", "b"])] == [(), (("step", "1"),)]
    await theirs.commit()
    assert await storage.heartbeat(Presence(worker="w"), [a, c], 30.0) == HeartbeatResult()
    [row] = await storage.get(["a"])
    assert row is not None
    assert row.checkpoints == (("step", "1"),)


async def test_a_step_waits_for_a_locked_row(
    theirs: psycopg.AsyncConnection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its function runs once, although the row was locked when the step was to be stored and the run failed
    afterwards."""
    app = App(support.url_of(schema), retry=Retry(attempts=3, base=0.01))
    charged: list[str] = []
    charging, go, unsaved = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        charged.append("card")
        charging.set()
        await go.wait()
        return "receipt"

    @app.task
    async def ship() -> str:
        receipt: str = await current().step("charge", charge)
        if current().attempt == 1:
            raise ConnectionError("after the step was stored")
        return receipt

    heartbeat = app.storage.heartbeat

    async def told(*args: Any) -> HeartbeatResult:
        held = await heartbeat(*args)
        if held.unsaved:
            unsaved.set()
        return held

    monkeypatch.setattr(app.storage, "heartbeat", told)
    async with asyncio.timeout(30), Worker(app):
        sent = await ship.enqueue()
        await charging.wait()
        await theirs.execute(f"SELECT 1 FROM {schema}.job WHERE id = '{sent.id}' FOR UPDATE")  # type: ignore[arg-type]
        go.set()
        await unsaved.wait()
        await theirs.rollback()
        assert await sent.result(30) == "receipt"
    assert charged == ["card"]


async def test_a_join_locked_by_another_transaction(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str
) -> None:
    """An ending that cannot be counted down is refused; the other outcomes of the call are stored."""
    await storage.enqueue([job("a"), job("b"), job("join", after=("a",))])
    rows = await claimed(storage, 1)
    await theirs.execute(f"SELECT 1 FROM {schema}.job WHERE id = 'join' FOR UPDATE")  # type: ignore[arg-type]
    assert [settled.status for settled in await soon(storage, *rows.values())] == ["refused", "applied"]
    [a] = await storage.get(["a"])
    assert a is not None
    assert a.state is State.RUNNING
    await theirs.rollback()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert list(await claimed(storage, 2)) == ["join"]


async def test_a_limit_locked_by_another_transaction(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str
) -> None:
    """Jobs with this limit wait; other queues continue."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue([job("x", limits=(("api", 1),), queue="api"), job("a")])
    await theirs.execute(f"INSERT INTO {schema}.gate (key) VALUES ('api')")  # type: ignore[arg-type]
    ask = Claim(worker="w#1", limit=2, queues=(("api", 1), ("default", 1)))
    async with asyncio.timeout(MOST):
        assert [row.job.id for row in (await storage.claim(ask)).records] == ["a"]
    await theirs.rollback()
    ask = Claim(worker="w#2", limit=2, queues=(("api", 1), ("default", 1)))
    assert [row.job.id for row in (await storage.claim(ask)).records] == ["x"]


async def test_a_key_taken_in_an_open_transaction(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    """One of two jobs gets the key; the call for the other waits until the first transaction has ended."""
    await storage.within(theirs).enqueue([job("first", key="k")])
    other = asyncio.create_task(storage.enqueue([job("second", key="k")]))
    await support.blocked_by(theirs)
    assert not other.done()
    await theirs.commit()
    assert [row.job.id for row in await other] == ["first"]


async def test_dead_rows_are_vacuumed_by_the_number_of_jobs_that_left_the_queue(
    storage: PostgresStorage, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They left it by a claim, or because a limit blocked them."""
    monkeypatch.setattr(storage._sweeper, "_most", 4)
    await storage.set_limits([Limit("full", slots=0)])
    await storage.enqueue([job(f"aside{number}", limits=(("full", 1),)) for number in range(3)])
    await life(storage, "j")
    ask = "SELECT vacuum_count FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'job'"
    await until(lambda: support.admin().execute(ask, (schema,)).fetchone() != (0,), "the server's count of sweeps")


WAITED_FOR = {
    "the gate of a limit": "SELECT FROM {schema}.gate WHERE key = 'one' FOR UPDATE",
    "a change of rules": "SELECT pg_advisory_xact_lock(hashtextextended('{schema} rules', 0))",
    "the same claim over another connection": "SELECT pg_advisory_xact_lock(hashtextextended('{schema} w#7', 0))",
}


@pytest.mark.parametrize("what", [*WAITED_FOR, "without limits: the same claim over another connection"])
async def test_a_lease_counts_from_the_end_of_the_wait_for_a_lock(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str, what: str
) -> None:
    lock = WAITED_FOR[what.removeprefix("without limits: ")]
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("before", limits=(("one", 1),))])
    await soon(storage, *(await claimed(storage, 1)).values())
    await storage.enqueue([job("a", limits=() if what.startswith("without") else (("one", 1),))])
    await theirs.execute(lock.format(schema=schema).encode())
    claiming = asyncio.create_task(patiently(storage, Claim(worker="w#7", queues=(("default", 1),), lease=30.0)))
    await support.blocked_by(theirs)
    [released] = (await (await theirs.execute("SELECT extract(epoch FROM clock_timestamp())::float8")).fetchall())[0]
    await theirs.commit()
    row = await claiming
    assert (row.id, row.due_at is not None and row.due_at >= released + 30.0) == ("a", True)
    assert row.started_at is not None
    assert row.started_at >= released


async def patiently(storage: PostgresStorage, ask: Claim) -> Record:
    """Repeat the claim until it returns a job, as a worker does."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StorageUnavailable):
                if found := (await storage.claim(ask)).records:
                    return found[0]
