"""A claim that finds limits locked by another transaction starts the jobs of other limits meanwhile.

Otherwise several workers would wait for each other at the head of a queue that has work for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import a_schema, blocked_by, done, job, url_of
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Record, State
from treadle.storage.postgres import PostgresStorage

TENANTS = [f"tenant:{n}" for n in range(12)]


@asynccontextmanager
async def held(storage: PostgresStorage, *keys: str, turn: bool = False) -> AsyncIterator[None]:
    """Lock these limits, as a claim or a settle of another worker does until it commits; `turn`: and have the turn."""
    [(schema,)] = await storage._runner.run("SELECT '{schema}'", [])
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        for key in keys:
            await other.execute(f"INSERT INTO {schema}.gate (key) VALUES (%s) ON CONFLICT DO NOTHING", [key])  # type: ignore[arg-type]
        await other.commit()
        if turn:
            await other.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s || ' turn', 0))", [str(schema).strip('"')]
            )
        await other.execute(f"SELECT FROM {schema}.gate WHERE key = ANY (%s) FOR NO KEY UPDATE", [list(keys)])  # type: ignore[arg-type]
        yield
        await other.rollback()


async def claimed(storage: PostgresStorage, number: int, limit: int, *queues: str) -> list[Record]:
    ask = Claim(worker=f"w#{number}", queues=tuple((queue, limit) for queue in queues or ("default",)), limit=limit)
    return list((await storage.claim(ask)).records)


def ids(rows: list[Record]) -> list[str]:
    return [row.id for row in rows]


@pytest.mark.parametrize("hold", ["run", "ended"])
async def test_jobs_behind_a_page_whose_gates_are_held_start(storage: PostgresStorage, hold: str) -> None:
    await storage.set_limits([Limit("tenant", slots=1 if hold == "ended" else 2, hold=hold)])  # type: ignore[arg-type]
    await storage.enqueue([job(f"a{n:02}", limits=((tenant, 1),)) for n, tenant in enumerate(TENANTS)])
    await storage.enqueue(
        [job("b0", limits=((TENANTS[0], 1),)), job("free"), job("other", limits=(("tenant:other", 1),))]
    )
    async with held(storage, *TENANTS):
        assert ids(await claimed(storage, 1, 2)) == ["free", "other"]
    assert ids(await claimed(storage, 2, 12)) == [f"a{n:02}" for n in range(12)]


async def test_a_queue_whose_gate_is_held_keeps_no_other_waiting(storage: PostgresStorage) -> None:
    await storage.set_limits([Limit("queue", slots=10)])
    await storage.enqueue([job(f"{queue}{n}", queue=queue) for queue in ("one", "two") for n in range(3)])
    async with held(storage, "queue:one"):
        assert ids(await claimed(storage, 1, 4, "one", "two")) == ["two0", "two1", "two2"]
    assert ids(await claimed(storage, 2, 4, "one", "two")) == ["one0", "one1", "one2"]


async def test_the_claim_of_a_round_trip_skips_locked_gates(storage: PostgresStorage) -> None:
    """It has settled too, so it holds locks of its own and must not wait."""
    await storage.set_limits([Limit("tenant", slots=1)])
    await storage.enqueue([job(f"a{n:02}", limits=((tenant, 1),)) for n, tenant in enumerate(TENANTS)])
    [first] = await claimed(storage, 1, 1)
    await storage.enqueue([job("other", limits=(("tenant:other", 1),))])
    async with held(storage, *TENANTS[1:]):
        ask = Claim(worker="w#2", queues=(("default", 5),), limit=5, running=(first.id,))
        settled, found = await storage.settle_claim([done(first)], ask)
    assert [each.status for each in settled] == ["applied"]
    assert ids(list(found.records)) == ["other"]


async def test_outcomes_are_stored_while_the_claim_of_their_trip_waits_for_its_turn(storage: PostgresStorage) -> None:
    """The slots that they free are free for other workers meanwhile."""
    await storage.set_limits([Limit("smtp", slots=1)])
    await storage.enqueue([job(name, limits=(("smtp", 1),)) for name in "abc"])
    [first] = await claimed(storage, 1, 1)
    assert await claimed(storage, 2, 5) == []
    await storage.enqueue([job("d", limits=(("smtp", 1),))])
    async with held(storage, "smtp", turn=True):
        ask = Claim(worker="w#3", queues=(("default", 5),), limit=5, running=(first.id,))
        trip = asyncio.create_task(storage.settle_claim([done(first)], ask))
        await waits(storage)
        [ended] = await storage.get([first.id])
        assert ended is not None
        assert ended.state is State.SUCCEEDED
    settled, found = await trip
    assert [each.status for each in settled] == ["applied"]
    assert ids(list(found.records)) == ["b"]


async def test_a_slot_freed_between_two_statements_of_a_claim_goes_to_the_blocked_job(storage: PostgresStorage) -> None:
    """The claim finds no note of the limit, and then a free slot: a job queued later must not get it."""
    await storage.set_limits([Limit("smtp", slots=1)])
    await storage.enqueue([job(name, limits=(("smtp", 1),)) for name in "ab"])
    [first] = await claimed(storage, 1, 1)
    assert await claimed(storage, 2, 5) == []
    await storage.enqueue([job("d", limits=(("smtp", 1),))])
    [(schema,)] = await storage._runner.run("SELECT '{schema}'", [])
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        await other.execute(f"LOCK TABLE {schema}.slot IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        asking = asyncio.create_task(claimed(storage, 3, 5))
        await blocked_by(other)  # it is about to count the slots
        await other.execute(f"DELETE FROM {schema}.slot WHERE id = %s", [first.id])  # type: ignore[arg-type]
        await other.execute(f"INSERT INTO {schema}.recheck (key) VALUES ('smtp')")  # type: ignore[arg-type]
        await other.commit()
        assert ids(await asking) == ["b"]


async def test_a_claim_waits_for_the_gate_of_a_limit_that_all_jobs_name(storage: PostgresStorage) -> None:
    """No job of this page could start without it, and none of the next pages."""
    await storage.set_limits([Limit("smtp", slots=100), Limit("tenant", slots=2)])
    await storage.enqueue([job(f"a{n:02}", limits=(("smtp", 1), (tenant, 1))) for n, tenant in enumerate(TENANTS)])
    async with held(storage, "smtp"):
        asking = asyncio.create_task(claimed(storage, 1, 5))
        await waits(storage)
    assert ids(await asking) == [f"a{n:02}" for n in range(5)]


async def test_a_claim_that_waited_for_a_lock_and_found_nothing_is_repeated(storage: PostgresStorage) -> None:
    """No notification says that a limit was unlocked: if the claim returned nothing, its worker would stay idle."""
    await storage.set_limits([Limit("smtp", slots=100)])
    await storage.enqueue([job(name, limits=(("smtp", 1),)) for name in "abc"])
    async with held(storage, "smtp"):
        asking = asyncio.create_task(claimed(storage, 1, 5))
        for _ in range(2):
            await waits(storage)
            await waits_no_more(storage)
        assert not asking.done()
    assert ids(await asking) == ["a", "b", "c"]


async def test_a_rate_that_opens_while_a_claim_waits_admits_the_job_blocked_first() -> None:
    """By the server's clock: the claim advanced due rows before it waited."""
    with a_schema() as schema:
        storage = PostgresStorage(url_of(schema))
        await storage.open()
        await storage.set_limits([Limit("paced", rate=1, per=1.0)])
        await storage.enqueue([job(name, limits=(("paced", 1),)) for name in ("first", "second")])
        assert ids(await claimed(storage, 1, 5)) == ["first"]  # the second one is blocked
        await storage.enqueue([job("third", limits=(("paced", 1),))])
        async with held(storage, "paced"):
            asking = asyncio.create_task(claimed(storage, 2, 5))
            await waits(storage)
            assert await is_closed(storage, schema), "the machine is too busy for this test to show anything"
            while await is_closed(storage, schema):
                pass
        assert ids(await asking) == ["second"]
        await storage.close()


async def is_closed(storage: PostgresStorage, schema: str) -> bool:
    """Whether the rate of the only limit admits no job."""
    return bool(
        await storage._runner.run(f"SELECT FROM {schema}.gate WHERE opens > extract(epoch FROM clock_timestamp())", [])
    )


async def waits(storage: PostgresStorage) -> None:
    """Wait until some backend waits for a row that another transaction holds."""
    async with asyncio.timeout(30):
        while not await waiting(storage):
            pass


async def waits_no_more(storage: PostgresStorage) -> None:
    async with asyncio.timeout(30):
        while await waiting(storage):
            pass


async def waiting(storage: PostgresStorage) -> bool:
    return bool(await storage._runner.run("SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'", []))
