"""Where claims begin to scan while an old snapshot keeps dead rows at the head of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from tests.storage.postgres import support
from tests.storage.postgres.support import done, job
from treadle.core.model import Claim, Outcome, Record, State
from treadle.storage.postgres import PostgresStorage
from treadle.storage.postgres import scan_floor as heads
from treadle.storage.postgres.scan_floor import HELD, ScanFloor
from treadle.testing.clock import HandClock

LONG = heads.SELDOM + 0.1  # seconds after which the whole queue is read again


@pytest.fixture
def looks() -> HandClock:
    """The clock by which whole queues are read again."""
    return HandClock()


@pytest.fixture
async def storage(looks: HandClock) -> AsyncIterator[PostgresStorage]:
    """A storage that has read very many dead rows that VACUUM could not remove."""
    with support.a_schema() as schema:
        made = PostgresStorage(support.url_of(schema))
        made._sweeper._head = ScanFloor(looks)
        made._sweeper._head.swept(HELD * 10)
        await made.open()
        yield made
        await made.close()


_claim_ids = iter(range(1_000_000))


async def claim(storage: PostgresStorage, limit: int = 1, **more: Any) -> list[Record]:
    ask = Claim(worker=f"w#{next(_claim_ids)}", **{"queues": (("default", limit),), "limit": limit, **more})
    return list((await storage.claim(ask)).records)


async def ids(storage: PostgresStorage, limit: int = 1, **more: Any) -> list[str]:
    return [row.job.id for row in await claim(storage, limit, **more)]


async def test_claims_continue_behind_the_floor(storage: PostgresStorage) -> None:
    """In queue order, several jobs to one claim, also jobs that were stored in one call and share a position."""
    await storage.enqueue([job(id) for id in "abcdefg"])
    assert [await ids(storage), await ids(storage, 3), await ids(storage, 2), await ids(storage, 5)] == [
        ["a"],
        ["b", "c", "d"],
        ["e", "f"],
        ["g"],
    ]
    await storage.enqueue([job("h")])
    assert await ids(storage, 5) == ["h"]


async def test_a_higher_priority_is_next_at_once(storage: PostgresStorage) -> None:
    await storage.enqueue([job(id) for id in "abc"])
    assert await ids(storage) == ["a"]
    await storage.enqueue([job("high", priority=5), job("low", priority=-5)])
    assert [await ids(storage), await ids(storage), await ids(storage), await ids(storage)] == [
        ["high"],
        ["b"],
        ["c"],
        ["low"],
    ]


async def test_a_job_that_returns_to_a_position_before_the_floor_is_found(
    storage: PostgresStorage, looks: HandClock
) -> None:
    """It is found when the whole queue is read: after a while, or if there are too few jobs behind the floor."""
    for id in "abcdefgh":
        await storage.enqueue([job(id)])
    [a] = await claim(storage)
    await ids(storage)
    await storage.settle([Outcome(id="a", version=a.version, state=State.READY)])
    assert await ids(storage) == ["c"]
    looks.advance(LONG)
    assert await ids(storage) == ["a"]
    [d] = await claim(storage)
    assert await ids(storage) == ["e"]
    await storage.settle([Outcome(id="d", version=d.version, state=State.READY)])
    assert await ids(storage) == ["f"]
    assert await ids(storage, 9) == ["d", "g", "h"]


async def test_each_queue_and_set_of_tasks_has_its_own_floor(storage: PostgresStorage) -> None:
    """Each queue, and each set of tasks that a claim names, has its own floor."""
    await storage.enqueue([job(f"a{n}", task="one") for n in range(3)] + [job(f"b{n}", task="two") for n in range(3)])
    await storage.enqueue([job(f"c{n}", queue="other") for n in range(3)])
    two = {"two": (None, None)}
    assert await ids(storage, tasks=two) == ["b0"]
    assert await ids(storage) == ["a0"]
    assert await ids(storage, tasks=two) == ["b1"]
    both = (("other", 1), ("default", 1))
    assert await ids(storage, 2, queues=both) == ["c0", "a1"]
    assert await ids(storage, 9, queues=both) == ["c1", "a2", "c2", "b2"]


async def test_a_job_that_a_claim_skipped_is_found_later(storage: PostgresStorage) -> None:
    """Passed over by a claim of certain jobs, or by one without room for some tasks."""
    for id in "abcd":
        await storage.enqueue([job(id, task="one" if id in "ac" else "two")])
    assert await ids(storage, 1, ids=("b",)) == ["b"]
    assert await ids(storage, 2, tasks={"one": (0, None), "two": (None, None)}) == ["d"]
    assert await ids(storage) == ["a"]
    assert await ids(storage, tasks={"one": (None, None), "two": (None, None)}) == ["c"]


async def test_due_rows_are_found_by_a_read_of_the_whole_queue(storage: PostgresStorage, looks: HandClock) -> None:
    clock = HandClock()
    storage._clock = clock
    await storage.enqueue([job(id) for id in "abcde"])
    await storage.enqueue([job("later", delay=10.0, priority=9)])
    assert await ids(storage) == ["a"]
    clock.advance(11)
    assert await ids(storage) == ["b"]
    looks.advance(LONG)
    assert await ids(storage) == ["later"]


async def test_claims_start_behind_rows_that_an_old_snapshot_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reports that rows could not be removed. From then on claims begin behind them, and miss no job."""
    monkeypatch.setattr(heads, "HELD", 200)
    with support.a_schema() as schema, psycopg.connect(support.postgres.url()) as other:
        storage = PostgresStorage(support.url_of(schema))
        storage._sweeper._most = 200
        await storage.open()
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM pg_class")
        await storage.enqueue([job(f"{n:05}") for n in range(1_000)])
        seen: list[str] = []
        used = 0
        while rows := await claim(storage, 20):
            seen += [row.job.id for row in rows]
            await storage.settle([done(row) for row in rows])
            if (sweep := storage._sweeper._sweep) is not None:
                await asyncio.wait([sweep])
            used += storage._sweeper.floors(Claim(worker="w")) is not None
        assert seen == [f"{n:05}" for n in range(1_000)]
        assert used > 10
        other.rollback()
        await storage.close()
