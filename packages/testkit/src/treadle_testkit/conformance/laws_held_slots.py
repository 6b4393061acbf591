"""Slots held until a job ends, and jobs that came back and are not claimed yet. Law 8."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import Record
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    WAITING,
    advance_due,
    back,
    cancelled,
    claim_ids,
    claim_one,
    done,
    job,
    jobs,
    names,
    out,
    row,
    run_out,
    settle,
    standing,
)

# --- a slot held until the ending


async def test_law08_a_slot_held_until_the_ending(storage: Storage, clock: HandClock) -> None:
    """The job keeps its slot from the first claim on, through retries, lost leases and waits, and its own retry may
    start."""
    await storage.set_limits([Limit("order", slots=1, hold="ended")])
    await storage.enqueue([*jobs("a b", limits=(("order:7", 1),)), job("p", task="")])
    a = await claim_one(storage)
    await settle(storage, back(a, 60, attempt=1))
    assert await claim_ids(storage, 9) == []
    clock.advance(60)
    assert await claim_ids(storage, 9, lease=10) == ["a"]
    clock.advance(11)
    assert await claim_ids(storage, 9) == ["a"]
    await settle(storage, out(await row(storage, "a"), WAITING, function_done=True, after=("p",)))
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(await row(storage, "p")))
    a = await claim_one(storage)
    assert (a.job.id, a.function_done) == ("a", True)
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_a_held_slot_is_freed_by_any_ending(storage: Storage, clock: HandClock) -> None:
    """When the job expires or is cancelled between two tries, the next one is admitted."""
    await storage.set_limits([Limit("order", slots=1, hold="ended")])
    await storage.enqueue([job("a", limits=(("order", 1),), deadline=20), *jobs("b c", limits=(("order", 1),))])
    await settle(storage, back(await claim_one(storage), 60))
    assert await claim_ids(storage, 9) == []
    clock.advance(20)
    assert await claim_ids(storage, 9) == ["b"]
    await settle(storage, back(await row(storage, "b"), 60))
    await settle(storage, cancelled(await row(storage, "b")))
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_start_in_a_held_slot_counts_against_the_rate(storage: Storage, clock: HandClock) -> None:
    """The job keeps its slot, but each of its starts counts against the rate."""
    await storage.set_limits([Limit("order", slots=1, rate=1, per=30, hold="ended")])
    await storage.enqueue(jobs("a", limits=(("order", 1),)))
    await settle(storage, back(await claim_one(storage)))
    assert await claim_ids(storage, 9) == []
    clock.advance(30)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_a_job_that_keeps_its_slot_returns_before_one_that_needs_it(
    storage: Storage, clock: HandClock
) -> None:
    """Blocked by the rate, it is not held back by an earlier job that waits for the slot it keeps."""
    await storage.set_limits([Limit("order", slots=1, rate=1, per=30, hold="ended")])
    await storage.enqueue(jobs("a b", limits=(("order", 1),)))
    await settle(storage, back(await claim_one(storage), 5, attempt=1))
    assert await claim_ids(storage, 9) == []
    clock.advance(5)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 2)
    clock.advance(25)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_no_job_of_a_strict_lane_overtakes_a_retry(storage: Storage, clock: HandClock) -> None:
    """A lane with one slot held until the ending: no job overtakes a retry."""
    await storage.set_limits([Limit("order", slots=1, hold="ended")])
    await storage.enqueue(jobs("a b c", lane="order:7", limits=(("order:7", 1),)))
    seen = []
    for _ in range(3):
        first = await claim_one(storage)
        await settle(storage, back(first, 5, attempt=1))
        assert await claim_ids(storage, 9) == []
        clock.advance(5)
        again = await claim_one(storage)
        assert again.job.id == first.job.id
        await settle(storage, done(again))
        seen.append(first.job.id)
    assert seen == ["a", "b", "c"]


# --- returned jobs that are not claimed yet


LOW, HIGH = -1, 5  # priorities behind and in front of a backlog of plain jobs


async def unreached(storage: Storage, limits: tuple[tuple[str, int], ...], **options: Any) -> Record:
    """`low` has returned behind plain jobs; `mid` runs in the slot it returned for, and `high` is blocked."""
    await storage.enqueue([job("first", limits=limits)])
    first = await claim_one(storage)
    await storage.enqueue([job("low", limits=limits, priority=LOW)])
    assert await claim_ids(storage) == []
    await storage.enqueue([job("mid", limits=limits)])
    await settle(storage, done(first))
    assert (await row(storage, "low")).queue_position is not None
    mid = await claim_one(storage)
    assert mid.job.id == "mid"
    await storage.enqueue([*jobs(names(0, 8, "plain")), job("high", limits=limits, priority=HIGH, **options)])
    assert await claim_ids(storage) == ["plain00"]
    assert (await row(storage, "high")).blocked_on is not None
    return mid


@pytest.mark.parametrize(
    ("rules", "limits"),
    [
        ([Limit("one", slots=1)], (("one", 1),)),
        ([Limit("one", slots=1, hold="ended")], (("one", 1),)),
        ([Limit("tenant", slots=1)], (("tenant:a", 1),)),
        ([Limit("x", slots=1), Limit("y", slots=1)], (("x", 1), ("y", 1))),
        ([Limit("gpu", slots=3)], (("gpu", 2),)),
    ],
    ids=["slots", "held until the ending", "partition", "two limits", "cost"],
)
async def test_law08_no_job_waits_for_an_unblocked_one_behind_it(
    storage: Storage, rules: list[Limit], limits: tuple[tuple[str, int], ...]
) -> None:
    """A returned job of low priority keeps no free slot from a job in front of it."""
    await storage.set_limits(rules)
    mid = await unreached(storage, limits)
    await settle(storage, done(mid))
    assert await claim_ids(storage) == ["high"]


async def test_law08_an_unblocked_job_keeps_its_room_from_those_behind_it(storage: Storage) -> None:
    """Of two jobs blocked for its slot, the one in front of the returned job is admitted, the one behind it is not."""
    await storage.set_limits([Limit("one", slots=1)])
    mid = await unreached(storage, (("one", 1),))
    await storage.enqueue([job("high-too", limits=(("one", 1),), priority=HIGH)])
    assert await claim_ids(storage) == ["plain01"]
    await settle(storage, done(mid))
    assert await standing(storage) == (6 + 2, 1)
    high = await claim_one(storage)
    assert high.job.id == "high"
    await settle(storage, done(high))
    assert await claim_ids(storage, 9) == ["high-too", *names(2, 8, "plain").split()]
    await run_out(storage, "high-too")
    assert await claim_ids(storage, 9) == ["low"]


async def test_law08_several_slots_and_several_unblocked_jobs(storage: Storage) -> None:
    """As many return as there are slots, in order, whichever returned jobs are queued behind them."""
    two = (("two", 1),)
    await storage.set_limits([Limit("two", slots=2)])
    await storage.enqueue([*jobs("a b", limits=two), *jobs("low0 low1", limits=two, priority=LOW)])
    assert await claim_ids(storage, 9) == ["a", "b"]
    await storage.enqueue(jobs("c d", limits=two))
    await run_out(storage, "a", "b")
    assert await claim_ids(storage, 2) == ["c", "d"]
    await storage.enqueue([*jobs(names(0, 9, "plain")), *jobs("x y z", limits=two, priority=HIGH)])
    assert await claim_ids(storage) == ["plain00"]
    await run_out(storage, "c")
    assert await claim_ids(storage, 2) == ["x", "plain01"]
    await run_out(storage, "d", "x")
    assert await claim_ids(storage, 3) == ["y", "z", "plain02"]


async def test_law08_a_costly_job_does_not_wait_for_a_cheap_one_behind_it(storage: Storage) -> None:
    """Jobs that fit in the remaining room return with it; those that do not stay blocked."""
    await storage.set_limits([Limit("gpu", slots=3)])
    await storage.enqueue([job("all", limits=(("gpu", 3),)), job("low", limits=(("gpu", 2),), priority=LOW)])
    first = await claim_one(storage)
    assert await claim_ids(storage) == []
    await settle(storage, done(first))
    await storage.enqueue([job("mid", limits=(("gpu", 3),))])
    mid = await claim_one(storage)
    await storage.enqueue([*jobs(names(0, 5, "plain")), job("high", limits=(("gpu", 2),), priority=HIGH)])
    await storage.enqueue([job(f"more{n}", limits=(("gpu", 1),), priority=HIGH - 1) for n in range(2)])
    assert await claim_ids(storage) == ["plain00"]
    await settle(storage, done(mid))
    assert await claim_ids(storage, 3) == ["high", "more0", "plain01"]
    assert (await row(storage, "more1")).queue_position is None


@pytest.mark.parametrize("how", ["window", "bucket"])
async def test_law08_no_job_waits_for_the_start_of_an_unblocked_one_behind_it(
    storage: Storage, clock: HandClock, how: Literal["window", "bucket"]
) -> None:
    """The same for a rate."""
    await storage.set_limits([Limit("api", rate=1, per=10, how=how)])
    await storage.enqueue([job("first", limits=(("api", 1),)), job("low", limits=(("api", 1),), priority=LOW)])
    assert await claim_ids(storage, 9) == ["first"]
    clock.advance(10)
    await advance_due(storage)
    assert (await row(storage, "low")).queue_position is not None
    await storage.enqueue([job("mid", limits=(("api", 1),))])
    assert await claim_ids(storage) == ["mid"]
    await storage.enqueue([*jobs(names(0, 5, "plain")), job("high", limits=(("api", 1),), priority=HIGH)])
    assert await claim_ids(storage) == ["plain00"]
    clock.advance(10)
    assert await claim_ids(storage) == ["high"]


async def test_law08_no_job_waits_for_one_behind_it_that_has_kept_its_slot(storage: Storage, clock: HandClock) -> None:
    """A job that keeps its slot between tries has returned to start, behind the jobs in front of it."""
    order = (("order", 1),)
    await storage.set_limits([Limit("order", slots=2, rate=1, per=10, hold="ended")])
    await storage.enqueue([job("low", limits=order, priority=LOW)])
    await settle(storage, back(await claim_one(storage), 5, attempt=1))
    clock.advance(5)
    assert await claim_ids(storage) == []
    clock.advance(5)
    await advance_due(storage)
    assert (await row(storage, "low")).queue_position is not None
    await storage.enqueue([job("mid", limits=order)])
    mid = await claim_one(storage)
    await storage.enqueue([*jobs(names(0, 5, "plain")), job("high", limits=order, priority=HIGH)])
    assert await claim_ids(storage) == ["plain00"]
    await settle(storage, done(mid))
    clock.advance(10)
    assert await claim_ids(storage) == ["high"]
