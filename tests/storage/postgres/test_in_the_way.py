"""Somebody else's open transaction is in the way: nobody waits long for it, and nothing is lost to it. Law 14."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from tests.storage.postgres import support
from tests.storage.postgres.support import done, job, life
from treadle.model import Claim, Hold, Limit, Presence, Record, Settled, State
from treadle.storage.postgres import PostgresStorage

MOST = 5.0  # s: far more than the one that a settle may wait, far less than a transaction may last


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
    """A connection of somebody else's, in a transaction."""
    async with await psycopg.AsyncConnection.connect(support.postgres.url()) as connection:
        yield connection
        await connection.rollback()


async def claimed(storage: PostgresStorage, number: int, limit: int = 9) -> dict[str, Record]:
    found = await storage.claim(Claim(worker=f"w#{number}", limit=limit, queues=(("default", limit),)))
    return {row.job.id: row for row in found.records}


async def soon(storage: PostgresStorage, *rows: Record) -> list[Settled]:
    async with asyncio.timeout(MOST):
        return await storage.settle([done(row) for row in rows])


async def test_who_is_waited_for_in_an_open_transaction(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    """He keeps his lease, and can end when they have committed; until then his ending alone is refused."""
    await storage.enqueue([job("a"), job("b")])
    rows = await claimed(storage, 1)
    await storage.within(theirs).enqueue([job("join", after=("a",))])
    holds = [Hold(row.job.id, row.version) for row in rows.values()]
    async with asyncio.timeout(MOST):
        assert await storage.heartbeat(Presence(worker="w"), holds, 90.0) == set()
    [a] = await storage.get(["a"])
    assert a is not None
    assert a.due_at is not None
    assert a.due_at > time.time() + 60
    first, second = await soon(storage, rows["a"], rows["b"])
    assert (first.status, second.status) == ("refused", "applied")
    assert "open transaction" in (first.reason or "")
    await theirs.commit()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert list(await claimed(storage, 2)) == ["join"]


async def test_who_is_waited_for_in_a_transaction_that_is_undone(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    await storage.enqueue([job("a")])
    rows = await claimed(storage, 1)
    await storage.within(theirs).enqueue([job("join", after=("a",))])
    await theirs.rollback()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert await storage.get(["join"]) == [None]


async def test_an_id_that_is_waited_for_before_it_is_known(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any]
) -> None:
    """Whoever stores it waits for those who wait for it; so it cannot end before they are there."""
    await storage.within(theirs).enqueue([job("join", after=("a",), wait_timeout=1_000.0)])
    storing = asyncio.create_task(storage.enqueue([job("a")]))
    await asyncio.wait([storing], timeout=0.2)
    assert not storing.done()
    await theirs.commit()
    await storing
    rows = await claimed(storage, 1)
    assert list(rows) == ["a"]
    await soon(storage, rows["a"])
    assert list(await claimed(storage, 2)) == ["join"]


async def test_rows_held_by_somebody(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str
) -> None:
    """Neither claimed, nor lost; settled when they are free; the others go their way."""
    await storage.enqueue([job(id) for id in "abcd"])
    rows = await claimed(storage, 1, limit=2)
    await theirs.execute(f"SELECT 1 FROM {schema}.job WHERE id IN ('a', 'c') FOR UPDATE")  # type: ignore[arg-type]
    async with asyncio.timeout(MOST):
        assert list(await claimed(storage, 2)) == ["d"]
        holds = [Hold(row.job.id, row.version) for row in rows.values()]
        assert await storage.heartbeat(Presence(worker="w"), holds, 30.0) == set()
    assert [settled.status for settled in await soon(storage, *rows.values())] == ["refused", "applied"]
    await theirs.rollback()
    assert [settled.status for settled in await soon(storage, rows["a"])] == ["applied"]
    assert list(await claimed(storage, 3)) == ["c"]


async def test_a_join_held_by_somebody(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str
) -> None:
    """What cannot be counted down is not ended; the rest of the call is."""
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


async def test_a_limit_counted_by_somebody(
    storage: PostgresStorage, theirs: psycopg.AsyncConnection[Any], schema: str
) -> None:
    """Its jobs wait; other queues do not."""
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
    """One of two gets it; the other learns so when the first has decided."""
    await storage.within(theirs).enqueue([job("first", key="k")])
    other = asyncio.create_task(storage.enqueue([job("second", key="k")]))
    await asyncio.wait([other], timeout=0.2)
    assert not other.done()
    await theirs.commit()
    assert [row.job.id for row in await other] == ["first"]


async def test_dead_rows_are_swept_by_the_number_of_those_who_left_the_line(
    storage: PostgresStorage, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed, or stepped aside."""
    monkeypatch.setattr(storage._sweeper, "_most", 4)
    await storage.set_limits([Limit("full", slots=0)])
    await storage.enqueue([job(f"aside{number}", limits=(("full", 1),)) for number in range(3)])
    await life(storage, "j")
    ask = "SELECT vacuum_count FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'job'"
    async with asyncio.timeout(30):
        while support.admin().execute(ask, (schema,)).fetchone() == (0,):  # noqa: ASYNC110 - the server tells it late
            await asyncio.sleep(0.05)
