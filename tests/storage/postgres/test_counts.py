"""Kept counts: changes are appended, no call waits because of them, and `prune` folds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import a_schema, done, job, url_of
from treadle.core.model import Claim, State
from treadle.storage.postgres import PostgresStorage
from treadle_testkit.shows import shows


class Counted:
    """A storage, and another connection to its schema."""

    def __init__(self, storage: PostgresStorage, beside: psycopg.Connection[Any]) -> None:
        self.storage, self.beside = storage, beside

    def rows(self, table: str) -> int:
        found = self.beside.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert found is not None
        return int(found[0])

    async def jobs(self) -> dict[str, int]:
        return {str(each.state): each.jobs for each in (await self.storage.stats()).counts}

    async def work(self, id: str) -> None:
        """Store a job, claim it and settle it."""
        await self.storage.enqueue([job(id)])
        claimed = await self.storage.claim(Claim(worker=f"w#{id}", queues=(("default", 1),), limit=1))
        await self.storage.settle([done(row) for row in claimed.records])


@pytest.fixture
async def counted() -> AsyncIterator[Counted]:
    with a_schema() as schema, psycopg.connect(postgres.url(), autocommit=True) as beside:
        storage = PostgresStorage(url_of(schema, timeout=5))
        await storage.open()
        beside.execute(f'SET search_path = "{schema}"'.encode())
        yield Counted(storage, beside)
        await storage.close()


@shows("on PostgreSQL no call waits because another one changes the same count, also not for a user's transaction")
async def test_open_transactions_hold_up_no_count(counted: Counted) -> None:
    """Two users' transactions store jobs of one task; meanwhile workers go on, prune folds, and a repair runs."""
    await counted.work("first")
    with psycopg.connect(postgres.url()) as one, psycopg.connect(postgres.url()) as two:
        await counted.storage.within(one).enqueue([job("a")])
        await counted.storage.within(two).enqueue([job("b")])
        await counted.work("c")
        await counted.storage.prune(9)
        assert await counted.storage.recount(repair=True) == ()
        assert await counted.jobs() == {"succeeded": 2}
        one.commit()
        two.rollback()
    assert await counted.jobs() == {"ready": 1, "succeeded": 2}
    assert await counted.storage.recount() == ()


async def test_prune_folds_the_changes(counted: Counted) -> None:
    """The sum stays the same; a user's transaction never folds."""
    for number in range(3):
        await counted.work(f"j{number}")
    counted.beside.execute("UPDATE ended SET expires_at = 0")
    with psycopg.connect(postgres.url()) as user:
        await counted.storage.within(user).enqueue([job("a")])
        user.commit()
    before = await counted.jobs()
    assert before == {"ready": 1, "succeeded": 3}
    await counted.storage.prune(0)
    assert (counted.rows("count_change"), await counted.jobs()) == (0, before)
    assert await counted.storage.prune(9) == 3
    assert await counted.jobs() == {"ready": 1}
    await counted.storage.prune(9)
    assert counted.rows("job_count") == 1, "groups without jobs are dropped"


async def test_the_fold_of_another_call_is_not_waited_for(counted: Counted) -> None:
    await counted.work("a")
    key = "hashtextextended(current_schema() || ' counts', 0)"
    counted.beside.execute(f"SELECT pg_advisory_lock({key})".encode())
    try:
        await counted.storage.prune(9)
        assert await counted.jobs() == {str(State.SUCCEEDED): 1}
        assert counted.rows("count_change") > 0
    finally:
        counted.beside.execute(f"SELECT pg_advisory_unlock({key})".encode())
