"""The times of jobs, in calls that wait for other transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import admin, blocked_by, done, job
from tests.waiting import until
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Outcome, Record, State
from treadle.errors import KeyHeld
from treadle.storage.postgres import PostgresStorage

T = TypeVar("T")


@pytest.fixture
def clock() -> None:
    """That of the server."""


@asynccontextmanager
async def waiting(
    storage: PostgresStorage, statement: str, call: Coroutine[Any, Any, T]
) -> AsyncIterator[asyncio.Task[T]]:
    """A call that has begun and waits for the locks of this statement until the block ends, which undoes it."""
    [(schema,)] = await storage._runner.run("SELECT '{schema}'", [])
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        await other.execute(statement.format(schema=schema))  # type: ignore[arg-type]
        task = asyncio.create_task(call)
        await blocked_by(other)
        yield task
        await other.rollback()


NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
LOCK_GATES = "LOCK TABLE {schema}.gate IN ACCESS EXCLUSIVE MODE"
LOCK_SLOTS = "LOCK TABLE {schema}.slot IN ACCESS EXCLUSIVE MODE"
LOCK_HOLDERS = "LOCK TABLE {schema}.holder IN ACCESS EXCLUSIVE MODE"
DELETE_KNOWN = "DELETE FROM {schema}.job WHERE id = 'known'"  # a call that stores this id waits for the outcome


@pytest.mark.parametrize("tasks", [None, {"t": (5, None)}], ids=["", "room per task"])
async def test_a_job_queued_while_a_claim_waits_starts_later(storage: PostgresStorage, tasks: object) -> None:
    await storage.enqueue([job("a"), job("b", after=("a",))])
    [first] = (await storage.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))).records
    ask = Claim(worker="w#2", queues=(("default", 5),), limit=5, tasks=tasks, lease=60)  # type: ignore[arg-type]
    async with waiting(storage, LOCK_GATES, storage.claim(ask)) as asking:
        [new] = await storage.enqueue([job("c")])
        await storage.settle([done(first)])
    found = {row.id: row for row in (await asking).records}
    [ended] = await storage.get(["a"])
    assert ended is not None
    assert ended.ended_at is not None
    for row, queued in ((found["b"], ended.ended_at), (found["c"], new.created_at)):
        assert row.started_at is not None
        assert row.due_at is not None
        assert row.started_at >= queued
        assert row.due_at == pytest.approx(row.started_at + 60)


@pytest.mark.parametrize("how", ["plain", "in a lane", "child"])
async def test_a_job_with_a_key_is_created_after_the_holder_has_ended(storage: PostgresStorage, how: str) -> None:
    """The holder ends while the call waits for the key."""
    await storage.enqueue([job("holder", key="k", queue="one"), job("parent", queue="two")])
    [holder] = (await storage.claim(Claim(worker="w#1", queues=(("one", 1),), limit=1))).records
    [parent] = (await storage.claim(Claim(worker="w#2", queues=(("two", 1),), limit=1))).records
    new = job("new", key="k", lane="l" if how == "in a lane" else None)
    call: Coroutine[Any, Any, Any] = storage.enqueue([new])
    if how == "child":
        call.close()
        waits = Outcome(id=parent.id, version=parent.version, state=State.WAITING, followups=(new,), function_done=True)
        call = storage.settle([waits])
    async with waiting(storage, LOCK_HOLDERS, call) as asked:
        await storage.settle([done(holder)])
    await asked
    ended, created = await storage.get(["holder", "new"])
    assert ended is not None
    assert created is not None
    assert ended.ended_at is not None
    assert created.created_at >= ended.ended_at


@pytest.mark.parametrize("how", ["in a lane", "child"])
async def test_a_job_with_a_key_is_no_older_than_the_end_of_a_holder_that_ends_during_the_call(
    storage: PostgresStorage, how: str
) -> None:
    """The call has the key and waits for another id. A job created before the holder ended would be a second one."""
    await storage.enqueue([job("holder", key="k", queue="one"), job("parent", queue="two"), job("known")])
    [holder] = (await storage.claim(Claim(worker="w#1", queues=(("one", 1),), limit=1))).records
    [parent] = (await storage.claim(Claim(worker="w#2", queues=(("two", 1),), limit=1))).records
    jobs = (job("new", key="k", lane="l"), job("known"))
    call: Coroutine[Any, Any, Any] = storage.enqueue(jobs)
    if how == "child":
        call.close()
        waits = Outcome(id=parent.id, version=parent.version, state=State.WAITING, followups=jobs, function_done=True)
        call = storage.settle([waits])
    async with waiting(storage, DELETE_KNOWN, call) as asked:
        await storage.settle([done(holder)])
    await asked
    ended, created = await storage.get(["holder", "new"])
    assert ended is not None
    assert ended.ended_at is not None
    assert created is None or created.created_at >= ended.ended_at


async def test_a_holder_of_another_queue_that_ends_during_the_call_is_not_returned(storage: PostgresStorage) -> None:
    """The call may reach one queue only, so it must not see the row of the job that holds its key."""
    await storage.enqueue([job("holder", key="k", queue="one"), job("known", queue="two")])
    [holder] = (await storage.claim(Claim(worker="w#1", queues=(("one", 1),), limit=1))).records
    new = job("new", key="k", lane="l", queue="two", reach=("two",))
    async with waiting(storage, DELETE_KNOWN, storage.enqueue([new, job("known", queue="two")])) as asked:
        await storage.settle([done(holder)])
    with pytest.raises(KeyHeld):
        await asked


async def test_a_job_that_gets_a_slot_starts_after_the_job_that_had_it_has_ended(storage: PostgresStorage) -> None:
    """The slot is freed after the claim has read the time, and before it counts the slots."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("b", limits=(("one", 1),))])
    [first] = (await storage.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))).records
    [(schema,)] = await storage._runner.run("SELECT '{schema}'", [])
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        await other.execute(f"LOCK TABLE {schema}.slot IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        asking = asyncio.create_task(storage.claim(Claim(worker="w#2", queues=(("default", 1),), limit=1)))
        await blocked_by(other)
        [settled] = await storage.within(other).settle([done(first)])
        assert settled.status == "applied"
        await other.commit()
    found = (await asking).records or (
        await storage.claim(Claim(worker="w#3", queues=(("default", 1),), limit=1))
    ).records
    [ended] = await storage.get(["a"])
    assert [row.job.id for row in found] == ["b"]
    assert ended is not None
    assert ended.ended_at is not None
    assert found[0].started_at is not None
    assert found[0].started_at >= ended.ended_at


async def test_a_rate_that_opens_while_a_claim_waits_starts_the_jobs_that_it_blocks(storage: PostgresStorage) -> None:
    """The second start of the window leaves it after the claim has counted, and before the claim reads the clock."""
    await storage.set_limits([Limit("pace", rate=2, per=1.0, slots=9)])
    new = [job(id, limits=(("pace", 1),)) for id in "abcde"]
    claim_ids = (f"w#{number}" for number in count())

    async def claim(most: int = 1, queue: str = "default") -> list[Record]:
        ask = Claim(worker=next(claim_ids), queues=((queue, most),), limit=most)
        return list((await storage.claim(ask)).records)

    async def passed(moment: float) -> None:
        await until(lambda: admin().execute(NOW).fetchall()[0][0] > moment, "a later time of the server")

    await storage.enqueue(new)
    [first] = await claim()
    assert first.started_at is not None
    await passed(first.started_at + 0.4)
    [second] = await claim()
    assert second.started_at is not None
    assert await claim(5) == []  # the others are blocked
    await passed(first.started_at + 1.0)
    assert await claim(5, "other") == []  # one is queued again
    async with waiting(storage, LOCK_SLOTS, claim(5)) as asking:
        await passed(second.started_at + 1.0)
    found = await asking
    await storage.enqueue([job("late", limits=(("pace", 1),))])
    found += await claim(5)
    assert [row.id for row in found] == ["c", "d"]
