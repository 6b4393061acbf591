"""The times of jobs, in claims that wait for other transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import a_schema, blocked_by, done, job, url_of
from treadle.core.model import Claim, Record
from treadle.storage.postgres import PostgresStorage


@pytest.fixture
async def storage() -> AsyncIterator[PostgresStorage]:
    """With the clock of the server, which does not stop while a call waits."""
    with a_schema() as schema:
        made = PostgresStorage(url_of(schema))
        await made.open()
        yield made
        await made.close()


@asynccontextmanager
async def waiting(storage: PostgresStorage, ask: Claim) -> AsyncIterator[asyncio.Task[list[Record]]]:
    """A claim that has read the clock and waits until the block ends."""
    [(schema,)] = await storage._runner.run("SELECT '{schema}'", [])

    async def claimed() -> list[Record]:
        return list((await storage.claim(ask)).records)

    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        await other.execute(f"LOCK TABLE {schema}.gate IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        asking = asyncio.create_task(claimed())
        await blocked_by(other)
        yield asking
        await other.rollback()


@pytest.mark.parametrize("tasks", [None, {"t": (5, None)}], ids=["", "room per task"])
async def test_a_job_queued_while_a_claim_waits_starts_later(storage: PostgresStorage, tasks: object) -> None:
    await storage.enqueue([job("a"), job("b", after=("a",))])
    [first] = (await storage.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))).records
    ask = Claim(worker="w#2", queues=(("default", 5),), limit=5, tasks=tasks, lease=60)  # type: ignore[arg-type]
    async with waiting(storage, ask) as asking:
        [new] = await storage.enqueue([job("c")])
        await storage.settle([done(first)])
    found = {row.id: row for row in await asking}
    [ended] = await storage.get(["a"])
    assert ended is not None
    assert ended.ended_at is not None
    for row, queued in ((found["b"], ended.ended_at), (found["c"], new.created_at)):
        assert row.started_at is not None
        assert row.due_at is not None
        assert row.started_at >= queued
        assert row.due_at == pytest.approx(row.started_at + 60)
