"""Rates: how many jobs of a limit start in a time. Laws 8 and 12."""

from __future__ import annotations

import random

import pytest

from treadle.core.limit_model import Limit
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    advance_due,
    back,
    beat,
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    job,
    jobs,
    names,
    row,
    run_out,
    settle,
    standing,
)
from treadle_testkit.shows import shows

# --- rates


@shows("a limit with a rate allows no more starts in a window than its rate")
async def test_law08_a_window_admits_as_many_starts_as_its_rate(storage: Storage, clock: HandClock) -> None:
    """`rate` starts within `per` seconds; the next one `per` seconds after the first of them."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue(jobs(names(0, 6), limits=(("api", 1),)))
    assert await claim_ids(storage, 1) == ["j00"]
    clock.advance(4)
    assert await claim_ids(storage, 9) == ["j01"]
    clock.advance(5.5)
    assert await claim_ids(storage, 9) == []
    clock.advance(0.5)
    assert await claim_ids(storage, 9) == ["j02"]
    clock.advance(3)
    assert await claim_ids(storage, 9) == []
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["j03"]


@shows("no window of a rate, wherever it begins, has too many starts")
@pytest.mark.parametrize("seed", range(4))
async def test_law08_no_window_has_more_starts_than_its_rate(storage: Storage, clock: HandClock, seed: int) -> None:
    """Starts at random times with random costs: every half-open window of `per` seconds stays within the rate."""
    rng, rate, per = random.Random(seed), 5, 7.0
    await storage.set_limits([Limit("api", rate=rate, per=per)])
    cost = {f"j{n:03}": rng.choice([1, 1, 1, 2, 3]) for n in range(120)}
    await storage.enqueue([job(id, limits=(("api", spent),)) for id, spent in cost.items()])
    starts: list[tuple[float, int]] = []
    while len(starts) < 120:
        taken = await claim(storage, rng.randint(1, 6))
        starts += [(clock(), cost[record.job.id]) for record in taken]
        await settle(storage, *(done(record) for record in taken if rng.random() < 0.9))
        clock.advance(rng.choice([0.0, 0.25, 0.5, 1.0, 2.0, 3.5, 7.0]))
    for begin, _ in starts:
        assert sum(spent for started_at, spent in starts if begin <= started_at < begin + per) <= rate
    assert starts[-1][0] - starts[0][0] < sum(cost.values()) / rate * per * 3, "slower than the rate allows"


async def test_law08_a_rate_counts_starts_not_runs(storage: Storage) -> None:
    """An early ending does not give a start back."""
    await storage.set_limits([Limit("api", rate=1, per=10)])
    await storage.enqueue(jobs("a b", limits=(("api", 1),)))
    await settle(storage, done(await claim_one(storage)))
    assert await claim_ids(storage, 9) == []


async def test_law08_a_retry_is_a_start(storage: Storage, clock: HandClock) -> None:
    """Each claim of a job whose function will run counts."""
    await storage.set_limits([Limit("api", rate=1, per=10)])
    await storage.enqueue(jobs("a", limits=(("api", 1),)))
    await settle(storage, back(await claim_one(storage)))
    assert await claim_ids(storage, 9) == []
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_a_claim_returns_when_a_rate_opens(storage: Storage, clock: HandClock) -> None:
    """A claim that finds no job returns when to claim again."""
    await storage.set_limits([Limit("api", rate=1, per=60)])
    await storage.enqueue(jobs("a b c", limits=(("api", 1),)))
    await settle(storage, done(await claim_one(storage)))
    clock.advance(20)
    assert (await claimed(storage, 9)).next_in == pytest.approx(40)
    clock.advance(40)
    assert await claim_ids(storage, 9) == ["b"]


@shows("a rate that opens unblocks only as many jobs as may start")
async def test_law08_a_rate_that_opens_unblocks_as_many_jobs_as_it_admits(storage: Storage, clock: HandClock) -> None:
    """Not all blocked jobs each time the rate opens."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue(jobs(names(0, 10), limits=(("api", 1),)))
    assert len(await claim_ids(storage, 9)) == 2
    assert await standing(storage) == (0, 8)
    clock.advance(10)
    await advance_due(storage)
    assert await standing(storage) == (2, 6)
    await advance_due(storage)
    assert await standing(storage) == (2, 6)
    assert await claim_ids(storage, 9) == ["j02", "j03"]


async def test_law08_a_rate_that_opens_admits_the_job_blocked_first(storage: Storage, clock: HandClock) -> None:
    """A later job waits behind jobs that were blocked before it, also while admitted jobs are not claimed yet."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue(jobs("a b c d", limits=(("api", 1),)))
    await claim_one(storage)
    clock.advance(1)
    await claim_one(storage)
    assert await claim(storage, 4) == []  # c and d are blocked
    clock.advance(9)
    await advance_due(storage)  # the first start is ten seconds ago: c is queued again
    clock.advance(1)
    await storage.enqueue(jobs("later", limits=(("api", 1),)))
    assert await claim_ids(storage, 2) == ["c", "d"]


async def test_law08_a_cost_beyond_the_rate_takes_all_of_it(storage: Storage, clock: HandClock) -> None:
    """It starts when a whole window is free, and fills it."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue([job("a", limits=(("api", 1),)), job("big", limits=(("api", 9),))])
    assert await claim_ids(storage, 9) == ["a"]
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["big"]
    await storage.enqueue(jobs("c", limits=(("api", 1),)))
    clock.advance(9)
    assert await claim_ids(storage, 9) == []
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_bucket_admits_a_burst_and_then_its_rate(storage: Storage, clock: HandClock) -> None:
    """`burst` starts at once, then one for each new token."""
    await storage.set_limits([Limit("api", rate=1, per=10, how="bucket", burst=3)])
    await storage.enqueue(jobs(names(0, 9), limits=(("api", 1),)))
    taken = []
    for _ in range(6):
        taken.append(len(await claim_ids(storage, 9)))
        clock.advance(5)
    assert taken == [3, 0, 1, 0, 1, 0]


async def test_law08_a_bucket_fills_no_higher_than_its_burst(storage: Storage, clock: HandClock) -> None:
    """A long silence saves up one burst at most; the default of `burst` is the rate."""
    await storage.set_limits([Limit("api", rate=2, per=10, how="bucket", burst=4), Limit("web", rate=2, how="bucket")])
    await storage.enqueue([*jobs(names(0, 20), limits=(("api", 1),)), *jobs(names(0, 9, "w"), limits=(("web", 1),))])
    assert len(await claim_ids(storage, 99)) == 6
    clock.advance(100_000)
    assert len(await claim_ids(storage, 99)) == 6


async def test_law08_a_claim_returns_when_a_bucket_has_its_next_token(storage: Storage, clock: HandClock) -> None:
    """It returns the time at which the token for the first blocked job is available."""
    await storage.set_limits([Limit("api", rate=1, per=10, how="bucket")])
    await storage.enqueue([job("a", limits=(("api", 1),)), job("b", limits=(("api", 1),))])
    await settle(storage, done(await claim_one(storage)))
    clock.advance(4)
    assert (await claimed(storage, 9)).next_in == pytest.approx(6)
    clock.advance(6)
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_prune_deletes_no_start_that_counts(storage: Storage, clock: HandClock) -> None:
    """It deletes the recorded starts of a partition only when that changes no decision."""
    await storage.set_limits([Limit("w", rate=2, per=60.0), Limit("b", rate=2, per=60.0, how="bucket")])
    new = [job(f"{key}{n}", limits=((f"{key}:1", 1),)) for n in range(5) for key in "wb"]
    await storage.enqueue(new)
    assert await claim_ids(storage, 9, lease=900) == ["b0", "b1", "w0", "w1"]
    for _ in range(3):
        await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == []
    clock.advance(59)
    await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == ["b2"]
    clock.advance(1)
    await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == ["b3", "w2", "w3"]
    await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == []


@shows("a job that one of its limits blocks spends nothing of the others")
async def test_law08_a_denied_check_spends_nothing(storage: Storage) -> None:
    """All limits of a job are checked before any of them is charged."""
    await storage.set_limits([Limit("tenant", rate=1, per=60), Limit("global", slots=0)])
    await storage.enqueue([job("a", limits=(("tenant:x", 1), ("global", 1))), job("b", limits=(("tenant:x", 1),))])
    assert await claim_ids(storage, 9) == ["b"]
    assert (await row(storage, "a")).blocked_on == "global"


async def test_law08_slots_and_rate_of_a_limit_both_apply(storage: Storage, clock: HandClock) -> None:
    """Both apply."""
    await storage.set_limits([Limit("api", slots=2, rate=3, per=10)])
    await storage.enqueue(jobs(names(0, 9), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00", "j01"]
    await run_out(storage, "j00", "j01")
    assert await claim_ids(storage, 9) == ["j02"]
    await run_out(storage, "j02")
    assert await claim_ids(storage, 9) == []
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["j03", "j04"]


# --- a clock that was ahead


@pytest.mark.parametrize(
    "rule", [Limit("api", rate=1, per=60.0), Limit("api", rate=1, per=60.0, how="bucket")], ids=["window", "bucket"]
)
@pytest.mark.parametrize("after", ["w", "new"], ids=["the same worker", "a new worker"])
async def test_law12_a_rate_opens_after_the_clock_was_ahead(
    storage: Storage, clock: HandClock, rule: Limit, after: str
) -> None:
    """Starts recorded ahead count as of the correction of the clock, for blocked and for queued jobs."""
    await storage.set_limits([rule])
    await beat(storage)
    clock.advance(7_200)
    await beat(storage)
    await storage.enqueue(jobs("a b", limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["a"]
    clock.moment -= 7_200
    await beat(storage, worker=after)
    await storage.enqueue([job("c", limits=(("api", 1),))])
    assert await claim_ids(storage, 9) == []
    clock.advance(60)
    await beat(storage, worker=after)
    assert len(await claim_ids(storage, 9)) == 1
    assert await claim_ids(storage, 9) == []
    clock.advance(60)
    await beat(storage, worker=after)
    assert len(await claim_ids(storage, 9)) == 1


async def test_law12_due_times_keep_their_distance_when_the_clock_is_corrected(
    storage: Storage, clock: HandClock
) -> None:
    """Delays, retries and leases written while the clock was a day ahead end as if it had been right."""
    await storage.enqueue(jobs("a-retry b-lost c-before"))
    await beat(storage)
    clock.advance(86_400)
    await beat(storage)
    retry = await claim_one(storage)
    await settle(storage, back(retry, 30))
    assert await claim_ids(storage, lease=30) == ["b-lost"]
    await storage.enqueue([job("delayed", delay=30)])
    clock.moment -= 86_400
    await beat(storage)
    before = await claim_one(storage)
    assert (before.job.id, await claim_ids(storage)) == ("c-before", [])
    await settle(storage, done(before))
    clock.advance(31)
    await beat(storage)
    assert sorted(await claim_ids(storage, 9)) == ["a-retry", "b-lost", "delayed"]
