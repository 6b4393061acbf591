"""The planner's estimates must not matter: a plan is made while a table is empty, and used when it is full."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Literal

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import done, job
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.storage.postgres import PostgresStorage

MANY, FEW = 1_000, 5
# Our functions never read without an index, see their settings; autovacuum does, and would be counted. Dead rows are
# counted too while any session of the database has an old snapshot. So this database is used by no other test.
READ = (
    "SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes"
    " WHERE schemaname = 'treadle' AND relname IN ('job', 'ended', 'slot', 'holder')"
)

WHOLE = (
    "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'treadle' AND relname IN ('job', 'ended')"
)


class Reader:
    """One connection, and a count of the rows that its verbs read."""

    def __init__(self, storage: PostgresStorage, beside: psycopg.Connection[Any]) -> None:
        self.storage, self._beside = storage, beside

    async def _counts(self) -> dict[str, int]:
        await self.storage._pool.run("SELECT pg_stat_force_next_flush()", [])
        return dict(self._beside.execute(READ).fetchall())

    async def read(self, verb: Awaitable[Any]) -> int:
        """Run a verb. Return how many rows it read."""
        before = await self._counts()
        await verb
        after = await self._counts()
        read = {name: count - before[name] for name, count in after.items() if count != before[name]}
        print(read)  # shown if there were too many
        return sum(read.values())

    async def claim(self, limit: int, queue: str = "default", **more: Any) -> list[Record]:
        ask = Claim(worker=f"w#{next(_claim_ids)}", queues=((queue, limit),), limit=limit, **more)
        return list((await self.storage.claim(ask)).records)


_claim_ids = iter(range(1_000_000))


async def fill(storage: PostgresStorage, name: str, **options: Any) -> None:
    await storage.enqueue([job(f"{name}{n:06}", **options) for n in range(MANY)])


async def fill_keys(storage: PostgresStorage, name: str) -> None:
    await storage.enqueue([job(f"{name}{n:06}", key=f"{name} {n}", queue="keyed") for n in range(MANY)])


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    """A queue with many jobs, many ended ones, and a planner that estimates reading the whole table as cheaper than
    some look-ups."""
    database = postgres.database()
    storage = PostgresStorage(f"{database}?pool=1")
    with psycopg.connect(database, autocommit=True) as beside:
        await storage.open()
        await storage.set_limits([Limit("api", slots=10_000)])
        made = Reader(storage, beside)
        await fill(storage, "old")
        while rows := await made.claim(MANY):
            await storage.settle([done(row) for row in rows])
        await fill(storage, "new")
        await fill(storage, "limited", queue="limited", limits=(("api", 1),))
        await storage.close()
        await storage.open()
        await storage._pool.run("SET cpu_operator_cost = 100", [])  # the descent of an index above all
        yield made
        await storage.close()


async def test_an_ending_reads_few_rows(reader: Reader) -> None:
    rows = await reader.claim(FEW)
    assert len(rows) == FEW
    assert await reader.read(reader.storage.settle([done(row) for row in rows])) < MANY


async def test_an_ending_that_frees_slots_reads_few_rows(reader: Reader) -> None:
    rows = await reader.claim(FEW, "limited")
    assert len(rows) == FEW
    assert await reader.read(reader.storage.settle([done(row) for row in rows])) < MANY


async def test_a_claim_reads_few_rows(reader: Reader) -> None:
    running = tuple(row.job.id for row in await reader.claim(FEW))
    assert await reader.read(reader.claim(FEW, running=running)) < MANY


async def test_a_claim_that_takes_slots_reads_few_rows(reader: Reader) -> None:
    running = tuple(row.job.id for row in await reader.claim(FEW, "limited"))
    assert await reader.read(reader.claim(FEW, "limited", running=running)) < MANY


async def test_a_claim_of_queues_with_a_rule_reads_few_rows(reader: Reader) -> None:
    await reader.storage.set_limits([Limit("queue", slots=10_000)])
    running = tuple(row.job.id for row in await reader.claim(FEW))
    assert await reader.read(reader.claim(FEW, running=running)) < MANY


async def test_a_claim_by_id_reads_few_rows(reader: Reader) -> None:
    await reader.claim(FEW)  # it may pass the dead leases of the ended jobs, which the server then marks
    ids = tuple(f"new{n:06}" for n in range(MANY - FEW, MANY))
    assert await reader.read(reader.claim(FEW, ids=ids)) < MANY


async def test_a_heartbeat_reads_few_rows(reader: Reader) -> None:
    rows = await reader.claim(FEW)
    renewals = [LeaseRenewal(id=row.id, version=row.version) for row in rows]
    noted = [LeaseRenewal(id=row.id, version=row.version, note="1") for row in rows]
    presence = Presence(worker="w")
    assert await reader.read(reader.storage.heartbeat(presence, renewals, 60.0)) < MANY
    assert await reader.read(reader.storage.heartbeat(presence, noted, 60.0)) < MANY


async def test_an_enqueue_of_stored_jobs_reads_few_rows(reader: Reader) -> None:
    again: list[NewJob] = [job(f"new{n:06}") for n in range(FEW)]
    assert await reader.read(reader.storage.enqueue(again)) < MANY
    assert await reader.read(reader.storage.enqueue([job(f"old{n:06}") for n in range(FEW)])) < MANY


async def test_an_enqueue_of_waiting_jobs_reads_few_rows(reader: Reader) -> None:
    new = [job(f"down{n}", after=(f"new{n:06}",)) for n in range(FEW)]
    assert await reader.read(reader.storage.enqueue(new)) < MANY


@pytest.mark.parametrize("conflict", ["keep", "replace"])
async def test_a_settle_with_keyed_children_reads_few_rows(
    reader: Reader, conflict: Literal["keep", "replace"]
) -> None:
    await fill_keys(reader.storage, "keyed")
    (row,) = await reader.claim(1)
    born = tuple(job(f"child{n}", key=f"key of child {n}", key_conflict=conflict) for n in range(FEW))
    ending = Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, followups=born)
    assert await reader.read(reader.storage.settle([ending])) < MANY


async def test_a_read_by_id_reads_few_rows() -> None:
    """A plan made while the tables were small read them whole until they were analyzed."""
    database = postgres.database()
    storage = PostgresStorage(f"{database}?pool=1")
    with psycopg.connect(database, autocommit=True) as beside:

        async def whole() -> dict[str, int]:
            await storage._pool.run("SELECT pg_stat_force_next_flush()", [])
            return dict(beside.execute(WHOLE).fetchall())

        await storage.open()
        await storage._pool.run("ANALYZE treadle.job, treadle.ended", [])
        await storage.enqueue([job("first")])
        for _ in range(8):  # after five executions PostgreSQL decides on one plan
            await storage.get(["first", "none"])
        await fill(storage, "new")
        before = await whole()
        found = await storage.get([f"new{n:06}" for n in range(FEW)])
        assert None not in found
        assert await whole() == before
        await storage.close()
