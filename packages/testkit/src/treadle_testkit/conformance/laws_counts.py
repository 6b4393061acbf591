"""The kept counts: after every verb they equal the rows, and `recount` finds and repairs what a foreign write broke."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from treadle.core.errors import KeyHeld, UnknownUpstream
from treadle.core.limit_model import Limit
from treadle.core.model import Record
from treadle.core.query_model import CountDrift, Kind, Query
from treadle.storage import queries
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Transactional
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    WAITING,
    advance_due,
    back,
    beat,
    cancelled,
    claim,
    claim_one,
    done,
    failed,
    job,
    jobs,
    names,
    out,
    renewal,
    row,
    run,
    said,
    settle,
    states,
)
from treadle_testkit.conformance.moving_kit import carry, movable, zoo
from treadle_testkit.conformance.run import Another, Connect, SpoilCount, UserTransaction
from treadle_testkit.shows import shows


async def all_rows(storage: Storage) -> list[Record]:
    rows: list[Record] = []
    cursor: str | None = None
    while True:
        page = await storage.find(Query(limit=500, cursor=cursor))
        rows += page.records
        cursor = page.cursor
        if cursor is None:
            return rows


async def agree(storage: Storage, clock: HandClock) -> None:
    """The kept counts equal the counted rows, and `recount` confirms that."""
    expected, stored = queries.counts(await all_rows(storage), clock()), (await storage.stats()).counts
    assert [(it.queue, it.task, it.state, it.jobs, it.queued, it.blocked) for it in stored] == [
        (it.queue, it.task, it.state, it.jobs, it.queued, it.blocked) for it in expected
    ]
    assert [it.oldest for it in stored] == [pytest.approx(it.oldest) for it in expected]
    assert await storage.recount() == ()


async def numbers(storage: Storage) -> dict[tuple[str, str, str], int]:
    return {(it.queue, it.task, str(it.state)): it.jobs for it in (await storage.stats()).counts}


@shows("kept counts equal the rows after every kind of call")
async def test_more_counts_follow_each_state_of_a_job(storage: Storage, clock: HandClock) -> None:
    """Every way into a state and out of it; a call that stores nothing counts nothing."""
    assert (await storage.stats()).counts == ()
    assert await storage.recount() == ()
    await zoo(storage, clock)
    await agree(storage, clock)
    held = {record.job.id: record for record in await all_rows(storage) if record.state is RUNNING}
    await settle(storage, *(done(record) for record in list(held.values())[:2]))
    await agree(storage, clock)
    for seconds in (20, 30, 200):  # leases expire, deadlines pass, delays end
        clock.advance(seconds)
        await advance_due(storage)
        await agree(storage, clock)
    with pytest.raises(UnknownUpstream):
        await storage.enqueue([job("x1"), job("x2", after=("nobody",))])
    await storage.enqueue([job("k1", key="kk")])
    with pytest.raises(KeyHeld):
        await storage.enqueue([job("x3"), job("x4", key="kk", key_conflict="raise")])
    await storage.enqueue([job("k1", key="kk"), job("k2", key="kk")])
    await agree(storage, clock)
    ended = [record for record in await all_rows(storage) if record.state in (FAILED, CANCELLED)]
    assert ended
    for record in ended:
        await storage.settle([back(record)])
        await agree(storage, clock)
    clock.advance(10**9)
    while await storage.prune(3):
        await agree(storage, clock)


async def test_more_counts_of_plain_jobs(storage: Storage, clock: HandClock) -> None:
    """Many at a time, of several queues and tasks, with a settle and a claim in one step where the storage has it."""
    for queue, task in (("x", "t"), ("x", "u"), ("y", "t")):
        await storage.enqueue(jobs(names(0, 40, queue + task), queue=queue, task=task))
    await agree(storage, clock)
    rows = await claim(storage, 30, "x", "y")
    await agree(storage, clock)
    assert await said(storage, *map(done, rows[:10])) == ["applied"] * 10
    await settle(storage, *(failed(record) for record in rows[10:15]), *(cancelled(record) for record in rows[15:20]))
    await settle(storage, *(back(record) for record in rows[20:24]), back(rows[24], 60, attempt=1))
    await agree(storage, clock)
    assert await said(storage, *map(done, rows[:10])) == ["applied"] * 10
    assert "applied" not in await said(storage, *map(failed, rows[:10]))
    await agree(storage, clock)
    clock.advance(31)
    await advance_due(storage)
    await agree(storage, clock)
    clock.advance(10**8)
    assert await storage.prune(100) == 20
    await agree(storage, clock)


async def test_more_counts_of_dependents_and_followups(storage: Storage, clock: HandClock) -> None:
    """Doomed dependents of all depths, children, follow-ups, and a reopened workflow."""
    await storage.enqueue([job("a"), job("b", after=("a",), queue="y"), job("c", after=("b",), task="u"), job("z")])
    await run(storage, "a", to=FAILED)
    assert await states(storage, "b c") == [CANCELLED, CANCELLED]
    await agree(storage, clock)
    await settle(storage, back(await row(storage, "a")))
    assert await states(storage, "a b c") == [READY, WAITING, WAITING]
    await agree(storage, clock)
    a = (await claim(storage, 1, ids=("a",)))[0]
    children = tuple(jobs("a1 a2", parent="a", root="a", queue="y"))
    await settle(storage, out(a, WAITING, function_done=True, followups=children, after=("a1", "a2")))
    await agree(storage, clock)
    await run(storage, "a1", "a2")
    await agree(storage, clock)
    z = (await claim(storage, 1, ids=("z",)))[0]
    refused = out(z, WAITING, followups=(job("z1"),), after=("nobody",))
    assert await said(storage, refused, done(z)) == ["refused", "applied"]
    await agree(storage, clock)


async def test_more_counts_of_keys_that_are_replaced(storage: Storage, clock: HandClock) -> None:
    """A superseded job is cancelled and counted so; one that runs continues."""
    await storage.enqueue([job("a", key="k"), job("b", key="l")])
    await claim(storage, 1, ids=("b",))
    for number in range(3):
        await storage.enqueue(
            [job(f"{key}{number}", key=key, key_conflict="replace", queue=f"q{number}") for key in "kl"]
        )
        await agree(storage, clock)


async def test_more_counts_of_blocked_jobs(storage: Storage, clock: HandClock) -> None:
    """Jobs of several limits, blocked, returned when there is room, blocked again, and claimed."""
    await storage.set_limits([Limit("one", slots=1), Limit("shut", slots=0), Limit("pace", rate=1, per=60)])
    for name, task in (("one", "t"), ("shut", "u"), ("pace", "t")):
        await storage.enqueue(jobs(names(0, 4, name), task=task, limits=((name, 1),)))
    rows = await claim(storage, 9)
    await agree(storage, clock)
    blocked = {use.key: use.blocked for use in (await storage.stats()).limits}
    assert blocked == {
        name: sum(record.blocked_on == name and record.queue_position is None for record in await all_rows(storage))
        for name in ("one", "shut", "pace")
    }
    await settle(storage, *map(done, rows))
    await agree(storage, clock)
    await storage.set_limits([Limit("shut", slots=2)])
    await advance_due(storage)
    await agree(storage, clock)
    await claim(storage, 9)
    await storage.set_limits([Limit("one"), Limit("shut")])
    clock.advance(60)
    await claim(storage, 9)
    await agree(storage, clock)


async def test_more_counts_of_a_lost_lease_that_is_renewed(storage: Storage, clock: HandClock) -> None:
    """The job was queued again; the heartbeat removes it from the queue, and from the count of queued jobs."""
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    clock.advance(31)
    await advance_due(storage)
    await agree(storage, clock)
    assert await beat(storage, renewal(a)) == frozenset()
    await agree(storage, clock)
    assert await numbers(storage) == {("default", "t", "ready"): 1, ("default", "t", "running"): 1}


async def test_more_each_group_has_the_oldest_job_of_its_queue(storage: Storage, clock: HandClock) -> None:
    """The job may have any task and priority; each group with a queued job has an age, and no other group has one."""
    await storage.enqueue([job("first", queue="x", priority=-3), job("late", queue="x", task="v", delay=99)])
    clock.advance(5)
    await storage.enqueue([job("urgent", queue="x", task="u", priority=7), job("other", queue="y")])
    clock.advance(2)
    oldest = {(it.queue, it.task): it.oldest for it in (await storage.stats()).counts}
    assert oldest == {
        ("x", "t"): pytest.approx(7.0),
        ("x", "u"): pytest.approx(7.0),
        ("x", "v"): None,
        ("y", "t"): pytest.approx(2.0),
    }
    await claim(storage, 1, ids=("first",))
    oldest = {(it.queue, it.task): it.oldest for it in (await storage.stats()).counts}
    assert oldest == {
        ("x", "t"): None,
        ("x", "u"): pytest.approx(2.0),
        ("x", "v"): None,
        ("y", "t"): pytest.approx(2.0),
    }


async def test_more_counts_of_calls_at_the_same_time(storage: Storage, clock: HandClock, connect: Connect) -> None:
    """Several connections store, claim and settle in one queue; no change is lost or counted twice."""
    others = [storage, *[await connect() for _ in range(3)]]

    async def work(number: int, mine: Storage) -> None:
        for turn in range(6):
            await mine.enqueue(jobs(names(0, 5, f"w{number}{turn}-")))
            rows = await claim(mine, 4, worker=f"w{number}")
            await settle(mine, *map(done, rows[:2]), *map(failed, rows[2:3]), *(back(record) for record in rows[3:]))
            if turn % 2:
                await mine.recount(repair=True)

    await asyncio.gather(*(work(number, mine) for number, mine in enumerate(others)))
    await agree(storage, clock)


# --- transactions and moves


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
async def test_more_counts_of_a_transaction(
    storage: Storage, clock: HandClock, user_transaction: UserTransaction, commits: bool
) -> None:
    """Its changes count with the commit; a roll-back leaves no trace."""
    await storage.enqueue([job("old", key="k"), job("run"), job("bad")])
    await claim(storage, 2, ids=("run", "bad"))
    before = await numbers(storage)
    async with user_transaction(storage) as user:
        bound = cast("Transactional", storage).within(user.given)
        await bound.enqueue([*jobs("a b"), job("new", key="k", key_conflict="replace", delay=5)])
        with pytest.raises(UnknownUpstream):
            await bound.enqueue([job("never"), job("c", after=("nobody",))])
        await bound.settle([done(await row(storage, "run")), failed(await row(storage, "bad"))])
        assert await numbers(storage) == before
        await (user.commit() if commits else user.roll_back())
    await agree(storage, clock)
    assert (await numbers(storage) == before) is not commits


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
async def test_more_counts_of_a_run_in_a_transaction(
    storage: Storage, clock: HandClock, user_transaction: UserTransaction, commits: bool
) -> None:
    """The same for a transaction that was begun for a run."""
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    before = await numbers(storage)
    transaction = await cast("Transactional", storage).begin(sync=False)
    try:
        await transaction.bound.enqueue(jobs("c d"))
        await transaction.bound.settle([done(a)])
        await (transaction.commit() if commits else transaction.roll_back())
    finally:
        await transaction.close()
    await agree(storage, clock)
    assert (await numbers(storage) == before) is not commits


async def test_more_counts_of_a_copy(storage: Storage, clock: HandClock, another: Another) -> None:
    """The storage that loads rows counts them, once when a load is repeated, and continues counting."""
    movable(storage)
    await zoo(storage, clock)
    target = await another()
    await carry(storage, target)
    assert await numbers(target) == await numbers(storage)
    await agree(target, clock)
    clock.advance(300)
    rows = await claim(target, 9)
    await settle(target, *map(done, rows))
    await agree(target, clock)


# --- a count that differs


def drift(kind: Kind, kept: int, counted: int, **of: Any) -> CountDrift:
    return CountDrift(**{"queue": "default", "task": "t", **of}, kind=kind, kept=kept, counted=counted)


@shows("a recount names each kept count that differs from the rows, and repairs it")
async def test_more_a_recount_finds_and_repairs(storage: Storage, clock: HandClock, spoil_count: SpoilCount) -> None:
    """A count that is too high, one that is too low, and one of a group without rows."""
    await storage.enqueue([*jobs("a b c"), job("later", delay=60), job("other", queue="x", task="u")])
    await claim(storage, 1)
    await spoil_count(storage, "default", "t", "queued", +3)
    await spoil_count(storage, "default", "t", "running", -1)
    await spoil_count(storage, "gone", "v", "failed", +2)
    expected = (
        drift("queued", 5, 2),
        drift("running", 0, 1),
        drift("failed", 2, 0, queue="gone", task="v"),
    )
    assert await storage.recount() == expected
    assert await storage.recount() == expected, "a recount without repair changed something"
    assert await storage.recount(repair=True) == expected
    await agree(storage, clock)
    await claim(storage, 9)
    await agree(storage, clock)


async def test_more_a_recount_during_other_calls_is_exact(
    storage: Storage, clock: HandClock, connect: Connect, spoil_count: SpoilCount
) -> None:
    """Repairs at the same time correct a count once, while other calls change it."""
    await storage.enqueue(jobs(names(0, 50)))
    await spoil_count(storage, "default", "t", "queued", +7)
    others = [await connect() for _ in range(3)]

    async def work(mine: Storage) -> None:
        for _ in range(5):
            await settle(mine, *map(done, await claim(mine, 2)))

    await asyncio.gather(*map(work, others), *(it.recount(repair=True) for it in (storage, *others)))
    await agree(storage, clock)
