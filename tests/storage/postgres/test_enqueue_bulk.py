"""Many jobs in one call that are not plain: work whose time once grew faster than their number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import sql

from tests.servers import postgres
from tests.storage.postgres import support
from tests.storage.postgres.support import done, job
from treadle.core.model import Claim, NewJob
from treadle.core.query_model import Query
from treadle.errors import IdTaken, KeyHeld
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.storage.postgres.statements import renamed
from treadle.testing import HandClock

REFUSE = "CREATE OR REPLACE FUNCTION {}.{}({}) RETURNS {} LANGUAGE plpgsql AS $$ BEGIN RAISE 'one by one'; END $$"
ONE_BY_ONE = {  # the functions that let one job wait or be queued
    "wait_for_upstreams": ("job_row {schema}.job, t float8, ups text[], states int[], gone text[]", "void"),
    "end_wait": ("job_row {schema}.job, t float8", "void"),
    "queue_position_of": ("job_row {schema}.job, moment float8", "float8"),
}


@pytest.fixture
async def storage() -> AsyncIterator[PostgresStorage]:
    with support.a_schema() as schema:
        made = PostgresStorage(support.url_of(schema, timeout=15))
        await made.open()
        yield made
        await made.close()


async def test_very_many_unique_jobs_in_one_call(storage: PostgresStorage) -> None:
    """They are stored within the time limit of a call, once each; sent again, their rows are returned."""
    many = 10_000
    rows = await storage.enqueue([job(f"a{n:05}", key=f"k{n % many}") for n in range(many + 50)])
    assert [row.id for row in rows] == [f"a{n % many:05}" for n in range(many + 50)]
    rows = await storage.enqueue([job(f"b{n:05}", key=f"k{n + many // 2}") for n in range(many)])
    assert [row.id for row in rows[: many // 2]] == [f"a{n:05}" for n in range(many // 2, many)]
    assert [row.id for row in rows[many // 2 :]] == [f"b{n:05}" for n in range(many // 2, many)]


@pytest.mark.parametrize("stored", [True, False])
async def test_many_unique_jobs_in_a_concurrent_enqueue(storage: PostgresStorage, stored: bool) -> None:
    """None of the keys is known when the call begins. It waits until the other call has ended, and then returns its
    jobs."""
    many = 200  # more than the number that is inserted without ON CONFLICT
    jobs = [[job(f"{name}{n}", key=f"k{n}") for n in range(many)] for name in "ab"]
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        await storage.within(other).enqueue(jobs[0])
        second = asyncio.create_task(storage.enqueue(jobs[1]))
        await support.blocked_by(other)
        await (other.commit() if stored else other.rollback())
        rows = await second
    assert [row.id for row in rows] == [f"{'a' if stored else 'b'}{n}" for n in range(many)]
    assert await storage.enqueue(jobs[1]) == rows


@pytest.mark.parametrize("many", [3, 200])
async def test_unique_jobs_with_labels_and_leases(storage: PostgresStorage, many: int) -> None:
    """The job that gets its key is found by its labels and claimed with its own lease; the others leave no rows."""
    new = [
        job("a0", key="k0", labels=("x=1", 'y="\\{,', "x=1"), lease=7.0),
        job("a1", key="k1", lease=9.5),
        job("a2", key="k2"),
        *(job(f"a{n}", key=f"k{n}", labels=("rest",)) for n in range(3, many)),
    ]
    rows = await storage.enqueue(new)
    assert [row.job for row in rows] == new
    late = [job("b0", key="k0", labels=("late",), lease=1.0), job("b1", key="l", labels=("late",))]
    assert [row.id for row in await storage.enqueue(late)] == ["a0", "b1"]
    assert await storage.get([each.id for each in new]) == rows
    for label, ids in (("x=1", ["a0"]), ('y="\\{,', ["a0"]), ("late", ["b1"])):
        found = await storage.find(Query(label=label))
        assert [row.id for row in found.records] == ids
    claimed = (await storage.claim(Claim(worker="w#1", queues=(("default", many),), limit=many, lease=30.0))).records
    leases = {row.id: round((row.due_at or 0) - (row.started_at or 0), 3) for row in claimed}
    assert (leases["a0"], leases["a1"], leases["a2"]) == (7.0, 9.5, 30.0)


async def test_a_known_id_among_unique_jobs(storage: PostgresStorage) -> None:
    """The call returns its row, whatever key the job names now, and stores nothing twice."""
    first = [job("a", key="k"), job("b", key="l")]
    await storage.enqueue(first)
    assert [row.id for row in await storage.enqueue([*first, job("c", key="k"), job("d", key="m")])] == [
        "a",
        "b",
        "a",
        "d",
    ]
    assert [row.id for row in await storage.enqueue([job("b", key="k"), job("d", key="n"), job("e", key="n")])] == [
        "b",
        "d",
        "e",
    ]
    ask = Claim(worker="w#1", queues=(("default", 9),), limit=9)
    await storage.settle(list(map(done, (await storage.claim(ask)).records)))
    rows = await storage.enqueue([job("f", key="k"), job("a", key="k"), job("g", key="k"), job("h", key="l")])
    assert [row.id for row in rows] == ["f", "a", "f", "h"]


async def test_the_order_of_a_call_decides_each_key(storage: PostgresStorage) -> None:
    """The order of the jobs in a call decides each key, independently of other keys."""
    await storage.enqueue([job("held", key="old"), job("other", key="replaced")])
    rows = await storage.enqueue(
        [
            job("a", key="old"),
            job("b", key="new"),
            job("c", key="replaced", key_conflict="replace"),
            job("d", key="new"),
            job("e", key="replaced"),
            job("f", key="both"),
            job("g", key="both", key_conflict="replace"),
            job("b", key="new"),
        ]
    )
    assert [row.id for row in rows] == ["held", "b", "c", "b", "c", "f", "g", "b"]
    found = await storage.get(["a", "d", "e", "other", "f"])
    assert [row and row.state.value for row in found] == [None, None, None, "cancelled", "cancelled"]
    with pytest.raises(KeyHeld, match="new"):
        await storage.enqueue([job("h", key="free"), job("i", key="new", key_conflict="raise")])
    assert await storage.get(["h", "i"]) == [None, None]


async def test_a_known_id_that_would_replace_a_key_answers_once(storage: PostgresStorage) -> None:
    """The call returns its own row for it, and the holder for another job with its key."""
    await storage.enqueue([job("holder", key="k"), job("known")])
    rows = await storage.enqueue([job("a", key="k"), job("known", key="k", key_conflict="replace"), job("b")])
    assert [row.id for row in rows] == ["holder", "known", "b"]


@pytest.fixture
async def one_by_one_fails() -> AsyncIterator[tuple[PostgresStorage, HandClock]]:
    schema, clock = support.take_schema(), HandClock()
    storage = PostgresStorage(support.url_of(schema), now=clock)
    await storage.open()
    for name, (arguments, answer) in ONE_BY_ONE.items():
        support.admin().execute(
            sql.SQL(REFUSE).format(
                sql.Identifier(schema),
                sql.Identifier(renamed(f"{name}(")[:-1]),
                sql.SQL(arguments.format(schema=f'"{schema}"')),
                sql.SQL(answer),
            )
        )
    yield storage, clock
    await storage.close()
    support.admin().execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def after_of(n: int) -> dict[str, object]:
    """Chains of three, and joins of the two jobs before."""
    ups = {0: (), 1: (f"j{n - 1:03}",), 2: (f"j{n - 2:03}", f"j{n - 1:03}")}[n % 3]
    return {"after": ups, "required": 1 if n % 9 == 2 else None, "failures_allowed": n % 2}


KINDS = {
    "lanes": lambda n: job(f"j{n:03}", lane=f"tenant{n % 7}", stride=(1.0, 0.5)[n % 2], delay=float(n % 5 == 0)),
    "ageing": lambda n: job(f"j{n:03}", priority=n % 3, aging=0.5),
    "after": lambda n: job(f"j{n:03}", **after_of(n)),
    "labels": lambda n: job(f"j{n:03}", labels=(f"l{n % 3}", "all")),
    "all": lambda n: job(f"j{n:03}", labels=("all",), lane=f"tenant{n % 7}", key=f"k{n % 150}", **after_of(n)),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_many_that_are_not_plain_are_stored_by_few_statements(
    one_by_one_fails: tuple[PostgresStorage, HandClock], kind: str
) -> None:
    """The rows equal those of the memory storage, and no function for one job is called."""
    storage, clock = one_by_one_fails
    memory = MemoryStorage(clock)
    made = [KINDS[kind](n) for n in range(200)]
    for jobs in (made[:100], made[50:]):  # some are known the second time
        assert await storage.enqueue(jobs) == await memory.enqueue(jobs)
        clock.advance(3)
    ids = [each.id for each in made]
    assert await storage.get(ids) == await memory.get(ids)


async def test_chosen_ids_go_in_with_the_plain_ones(storage: PostgresStorage) -> None:
    """While they are new. For a known one the call returns its row, or is refused as a whole."""
    chosen = [job(f"c{n}", nonce=f"{n:016x}", labels=("chosen",)) for n in range(5)]
    assert [row.job for row in await storage.enqueue(chosen)] == chosen
    again = [job(f"c{n}", nonce=f"{n + 9:016x}") for n in range(4, 7)]
    assert [row.job.nonce for row in await storage.enqueue(again)] == [f"{4:016x}", f"{14:016x}", f"{15:016x}"]
    other = NewJob(id="c0", task="other", nonce="f" * 16)
    with pytest.raises(IdTaken):
        await storage.enqueue([job("new", nonce="e" * 16), other])
    ask = Claim(worker="w#1", queues=(("default", 9),), limit=9)
    await storage.settle(list(map(done, (await storage.claim(ask)).records)))
    with pytest.raises(IdTaken):
        await storage.enqueue([job("new", nonce="e" * 16), other])
    assert await storage.get(["new"]) == [None]
