"""Costs: a claim reserves the cost of a job, and the end of the run replaces it by what was really spent. Law 8."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.limit_model import Limit, LimitChange, Pause, Resume
from treadle.core.model import NewJob
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    READY,
    WAITING,
    advance_due,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    failed,
    job,
    out,
    row,
    said,
    settle,
    standing,
)
from treadle_testkit.shows import shows

BOTH = pytest.mark.parametrize("how", ["window", "bucket"])


def call(id: str, cost: int = 60, limit: str = "tokens:ann", **options: Any) -> NewJob:
    """A job that reserves so much of a limit."""
    return job(id, limits=((limit, cost),), **options)


def used(*costs: tuple[str, int]) -> dict[str, Any]:
    return {"spent": costs}


def ann(cost: int) -> dict[str, Any]:
    return used(("tokens:ann", cost))


def budget(how: str = "window", rate: int = 100, per: float = 100.0) -> Limit:
    return Limit("tokens", rate=rate, per=per, how=how)  # type: ignore[arg-type]


async def counted(storage: Storage, key: str = "tokens:ann") -> int:
    """The starts that count now, in cost."""
    return next((use.starts for use in await storage.limits() if use.key == key), 0)


# --- what a run has spent replaces what its claim reserved


@shows("a run that spends less than it reserved makes room for the jobs behind it at once")
@BOTH
async def test_law08_a_lower_cost_makes_room_at_once(storage: Storage, clock: HandClock, how: str) -> None:
    """A blocked job returns in the settle, as when a slot is freed."""
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a"), call("b"), call("c")])
    first = await claim_one(storage)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 2)
    [use] = [use for use in await storage.limits() if use.key == "tokens:ann"]
    assert (use.starts, use.next_start) == (60, None)
    assert use.opens == pytest.approx(clock() + (100 if how == "window" else 20))
    await settle(storage, done(first, **ann(20)))
    assert await standing(storage) == (1, 1)
    assert await claim_ids(storage, 9) == ["b"]


@shows("a run that spends more than it reserved makes the next start wait longer")
async def test_law08_a_higher_cost_counts_fully(storage: Storage, clock: HandClock) -> None:
    """The next start waits until so much has left the window."""
    await storage.set_limits([budget()])
    await storage.enqueue([call("a", 10), call("b", 10), call("c", 10)])
    first = await claim_one(storage)
    clock.advance(10)
    second = await claim_one(storage)
    await settle(storage, done(first, **ann(30)), done(second, **ann(90)))
    assert await counted(storage) == 120
    clock.advance(85)
    assert await claim_ids(storage, 9) == []
    assert (await claimed(storage, 9)).next_in == pytest.approx(5)
    [use] = [use for use in await storage.limits() if use.key == "tokens:ann"]
    assert use.opens == pytest.approx(clock() + 5)
    clock.advance(5)
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_higher_cost_empties_a_bucket_further(storage: Storage, clock: HandClock) -> None:
    """It has to be refilled by the excess, too."""
    await storage.set_limits([budget("bucket")])
    await storage.enqueue([call("a", 100), call("b", 10)])
    await settle(storage, done(await claim_one(storage), **ann(150)))
    clock.advance(59)
    assert await claim_ids(storage, 9) == []
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["b"]


@BOTH
async def test_law08_a_run_may_have_spent_nothing(storage: Storage, how: str) -> None:
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a", 100), call("b", 100)])
    await settle(storage, done(await claim_one(storage), **ann(0)))
    assert await counted(storage) == 0
    assert await claim_ids(storage, 9) == ["b"]


@shows("a run that reports no cost keeps its reservation")
@BOTH
async def test_law08_a_limit_that_is_not_named_keeps_its_reservation(storage: Storage, how: str) -> None:
    """Each limit of a job has a cost of its own. A name that the job has not has no effect."""
    rules = [budget(how), Limit("requests", rate=2, per=100.0, how=how), Limit("other", rate=9, how=how)]  # type: ignore[arg-type]
    await storage.set_limits(rules)
    both = (("tokens:ann", 60), ("requests", 1))
    await storage.enqueue([job("a", limits=both), job("o", limits=(("other", 2),))])
    first, other = await claim(storage, 2)
    await settle(storage, done(first, **used(("tokens:ann", 7), ("other", 0), ("tokens", 0))), done(other))
    assert [await counted(storage, key) for key in ("tokens:ann", "requests", "other")] == [7, 1, 2]


@BOTH
@pytest.mark.parametrize("end", ["retry", "failure", "cancel", "wait"])
async def test_law08_each_end_of_a_run_replaces_its_cost(storage: Storage, how: str, end: str) -> None:
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a", 90), call("b", 90), job("up", queue="else")])
    first = await claim_one(storage)
    outcome = {
        "retry": out(first, READY, delay=5, attempt=1, error="boom", **ann(10)),
        "failure": failed(first, **ann(10)),
        "cancel": cancelled(first, **ann(10)),
        "wait": out(first, WAITING, after=("up",), **ann(10)),
    }[end]
    assert await claim_ids(storage, 9) == []
    await settle(storage, outcome)
    assert await claim_ids(storage, 9) == ["b"]
    assert await counted(storage) == 100


@BOTH
async def test_law08_a_released_job_starts_again_with_a_new_reservation(storage: Storage, how: str) -> None:
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a")])
    await settle(storage, back(await claim_one(storage), **ann(40)))
    assert await claim_ids(storage, 9) == ["a"]
    assert await counted(storage) == 100


async def test_law08_starts_of_one_instant_are_replaced_one_by_one(storage: Storage) -> None:
    """They are recorded together, and each outcome changes only its own part."""
    await storage.set_limits([budget()])
    await storage.enqueue([call("a", 20), call("b", 30), call("c", 40)])
    one, two, three = await claim(storage, 3)
    await settle(storage, done(two, **ann(5)))
    assert await counted(storage) == 65
    await settle(storage, done(three), done(one, **ann(50)))
    assert await counted(storage) == 95


async def test_law08_partitions_are_counted_separately(storage: Storage) -> None:
    await storage.set_limits([budget()])
    await storage.enqueue([call("a"), call("b", limit="tokens:bob")])
    one, two = await claim(storage, 2)
    await settle(storage, done(one, **ann(1)), done(two, **used(("tokens:bob", 2))))
    assert [await counted(storage, key) for key in ("tokens:ann", "tokens:bob")] == [1, 2]


async def test_law08_slots_keep_the_reserved_cost(storage: Storage) -> None:
    """Only rates count what was spent."""
    await storage.set_limits([Limit("tokens", slots=3, rate=100, per=100.0, hold="ended")])
    await storage.enqueue([call("a", 3)])
    await settle(storage, out(await claim_one(storage), READY, delay=9, **ann(1)))
    [use] = [use for use in await storage.limits() if use.key == "tokens:ann"]
    assert (use.used, use.starts) == (3, 1)


async def test_law08_a_cost_beyond_the_rate_is_replaced_exactly(storage: Storage) -> None:
    """Also if the rule was raised while the job ran."""
    await storage.set_limits([budget(rate=10)])
    await storage.enqueue([call("a", 60), call("b", 5)])
    first = await claim_one(storage)
    assert await claim_ids(storage, 9) == []
    await storage.set_limits([budget(rate=100)])
    assert await claim_ids(storage, 9) == ["b"]
    await settle(storage, done(first, **ann(70)))
    assert await counted(storage) == 75


# --- repeated, stale and lost runs


@BOTH
async def test_law10_a_repeated_outcome_replaces_nothing_again(storage: Storage, how: str) -> None:
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a"), call("b", 30)])
    one, _ = await claim(storage, 2)
    for _ in range(3):
        await settle(storage, done(one, **ann(50)))
    assert await counted(storage) == 80


@BOTH
async def test_law03_a_stale_outcome_replaces_nothing(storage: Storage, clock: HandClock, how: str) -> None:
    """The run of another claim has the job."""
    await storage.set_limits([budget(how, per=1_000_000.0)])
    await storage.enqueue([call("a", 40)])
    first = await claim_one(storage, lease=5)
    clock.advance(6)
    [second] = await claim(storage, 1)
    assert await said(storage, done(first, **ann(1))) == ["stale"]
    assert await counted(storage) == 80
    await settle(storage, done(second, **ann(10)))
    assert await counted(storage) == 50, "the run that was lost keeps its reservation"


async def test_law08_a_run_whose_lease_is_over_may_still_replace_its_cost(storage: Storage, clock: HandClock) -> None:
    """As long as no other claim has taken the job."""
    await storage.set_limits([budget()])
    await storage.enqueue([call("a")])
    first = await claim_one(storage, lease=5)
    clock.advance(6)
    await advance_due(storage)
    await settle(storage, done(first, **ann(10)))
    assert await counted(storage) == 10


@BOTH
async def test_law08_only_the_run_of_a_function_has_a_cost(storage: Storage, how: str) -> None:
    """A job that waits, is queued, or whose function is done started nothing that a rate counts."""
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a", 40), call("b", 40), call("later", 40, delay=50)])
    one, two = await claim(storage, 2)
    await settle(storage, out(one, READY, function_done=True, attempt=1))
    [again] = await claim(storage, 9)
    await settle(storage, done(again, attempt=1, **ann(0)), back(two, 30))
    waiting = await row(storage, "b")
    await settle(storage, cancelled(waiting, **ann(0)), cancelled(await row(storage, "later"), **ann(0)))
    assert await counted(storage) == 80


# --- a window that is over, and other rules


async def test_law08_a_start_whose_window_is_over_is_not_replaced(storage: Storage, clock: HandClock) -> None:
    await storage.set_limits([budget()])
    await storage.enqueue([call("a"), call("b", 90), call("c", 20)])
    first = await claim_one(storage, lease=900)
    clock.advance(100)
    assert await claim_ids(storage, 1, lease=900) == ["b"]
    await settle(storage, done(first, **ann(500)))
    assert await counted(storage) == 90
    assert await claim_ids(storage, 9) == []


async def test_law08_a_bucket_that_was_full_since_does_not_count_a_start(storage: Storage, clock: HandClock) -> None:
    await storage.set_limits([budget("bucket")])
    await storage.enqueue([call("a"), call("b", 90)])
    first = await claim_one(storage, lease=900)
    clock.advance(60)
    assert await claim_ids(storage, 1, lease=900) == ["b"]
    for cost in (0, 500):
        await said(storage, done(first, **ann(cost)))
        assert await counted(storage) == 90


@BOTH
async def test_law08_a_run_that_began_before_the_rule_is_not_counted(
    storage: Storage, clock: HandClock, how: str
) -> None:
    await storage.enqueue([call("a", 90), call("b", 90)])
    early = await claim_one(storage, lease=900)
    clock.advance(1)
    await storage.set_limits([budget(how)])
    assert await claim_ids(storage, 1, lease=900) == ["b"]
    await settle(storage, done(early, **ann(0)))
    assert await counted(storage) == 90


@pytest.mark.parametrize("change", ["removed", "paused", "smaller", "own"])
async def test_law08_a_rule_that_changed_during_the_run_counts_what_was_spent(
    storage: Storage, clock: HandClock, change: str
) -> None:
    """The starts that a window has recorded stay, whatever happens to its rule."""
    await storage.set_limits([budget()])
    await storage.enqueue([call("a"), call("b", 30)])
    first = await claim_one(storage)
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["b"]
    changes: dict[str, LimitChange] = {
        "removed": Limit("tokens"),
        "paused": Pause("tokens"),
        "smaller": budget(rate=50),
        "own": Limit("tokens:ann", rate=70, per=100.0),
    }
    await storage.set_limits([changes[change]])
    await settle(storage, done(first, **ann(10)))
    if change in ("removed", "paused"):
        await storage.set_limits([budget() if change == "removed" else Resume("tokens")])
    assert await counted(storage) == 40


async def test_law08_a_window_takes_the_place_of_a_bucket_during_the_run(storage: Storage, clock: HandClock) -> None:
    """A window has no record of the starts of a bucket, so the end of such a run changes nothing."""
    await storage.set_limits([budget("bucket")])
    await storage.enqueue([call("a"), call("b", 30)])
    first = await claim_one(storage)
    await storage.set_limits([budget("window")])
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["b"]
    await settle(storage, done(first, **ann(500)))
    assert await counted(storage) == 30


async def test_law12_a_clock_that_was_ahead_gives_nothing_back_twice(storage: Storage, clock: HandClock) -> None:
    """Starts that were recorded ahead count as of the correction; they are not found, and keep their reservation."""
    await storage.set_limits([budget()])
    await beat(storage)
    clock.advance(7_200)
    await beat(storage)
    await storage.enqueue([call("a"), call("b", 60)])
    first = await claim_one(storage, lease=9_000)
    clock.moment -= 7_200
    await beat(storage)
    await settle(storage, done(first, **ann(0)))
    assert await claim_ids(storage, 9) == []
    clock.advance(100)
    assert await claim_ids(storage, 9) == ["b"]
