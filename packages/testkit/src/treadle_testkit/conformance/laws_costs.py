"""Jobs of different costs under one limit: none is starved by cheaper ones behind it. Law 8."""

from __future__ import annotations

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import NewJob
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    advance_due,
    back,
    cancelled,
    claim_ids,
    claim_one,
    done,
    job,
    row,
    settle,
    state,
)
from treadle_testkit.shows import shows


def priced(id: str, cost: int, limit: str = "db", **options: object) -> NewJob:
    return job(id, limits=((limit, cost),), **options)


@shows("a costly job is not starved by cheaper ones that come later")
async def test_law08_a_costly_job_is_not_starved_by_later_ones(storage: Storage) -> None:
    """A slot is free for the cheap ones, but they are behind a job that needs more of them."""
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("a", 3)])
    first = await claim_one(storage)
    await storage.enqueue([priced("b", 3)])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([priced("c", 1)])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([priced("d", 1)])
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(first))
    assert await claim_ids(storage, 9) == ["b", "c"]
    await settle(storage, done(await row(storage, "b")))
    assert await claim_ids(storage, 9) == ["d"]


async def test_law08_a_costly_job_is_not_passed_in_the_claim_that_blocks_it(storage: Storage) -> None:
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("a", 3), priced("b", 2), priced("c", 1), job("d")])
    assert await claim_ids(storage, 9) == ["a", "d"]
    await settle(storage, done(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b", "c"]


@shows("jobs of equal cost start in order behind a costly one that a rate holds back")
@pytest.mark.parametrize("how", ["window", "bucket"])
async def test_law08_a_rate_starts_jobs_of_all_costs_in_order(storage: Storage, clock: HandClock, how: str) -> None:
    """A rate has enough left for a cheap job, but not for the costly one before it."""
    await storage.set_limits([Limit("db", rate=4, per=8.0, how=how)])  # type: ignore[arg-type]
    await storage.enqueue([priced("a", 2)])
    assert await claim_ids(storage, 9) == ["a"]
    await storage.enqueue([priced("b", 4), priced("c", 1)])
    assert await claim_ids(storage, 9) == []
    started: list[str] = []
    for n in range(4):
        await storage.enqueue([priced(f"d{n}", 1)])
        clock.advance(1)
        started += await claim_ids(storage, 9)
    assert started == (["b"] if how == "bucket" else [])
    while len(started) < 6:
        clock.advance(1)
        started += await claim_ids(storage, 9)
    assert started == ["b", "c", "d0", "d1", "d2", "d3"]


async def test_law08_a_job_of_a_higher_priority_passes_a_costly_one(storage: Storage) -> None:
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("a", 3)])
    assert await claim_ids(storage, 9) == ["a"]
    await storage.enqueue([priced("b", 2)])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([priced("u", 1, priority=1), priced("c", 1)])
    assert await claim_ids(storage, 9) == ["u"]


async def test_law08_a_costly_job_of_a_higher_priority_is_not_passed_in_its_claim(storage: Storage) -> None:
    """The claim knows the first blocked job of the queue already when it blocks one that precedes it."""
    await storage.set_limits([Limit("db", slots=5)])
    await storage.enqueue([priced("a", 3), priced("b", 3)])
    assert await claim_ids(storage, 9) == ["a"]
    await storage.enqueue([priced(id, cost, priority=1) for id, cost in (("u", 1), ("v", 2), ("w", 1))])
    assert await claim_ids(storage, 9) == ["u"]


async def test_law08_a_costly_job_holds_back_no_other_queue(storage: Storage) -> None:
    """A queue that is paused, or that no worker serves, would otherwise stop all the others."""
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("a", 3), priced("b", 2)])
    assert await claim_ids(storage, 9) == ["a"]
    await storage.enqueue([priced("c", 1, queue="other")])
    assert await claim_ids(storage, 9, "other") == ["c"]


async def test_law08_a_costly_job_holds_back_no_other_limit(storage: Storage) -> None:
    """It also holds back no other partition of its limit."""
    await storage.set_limits([Limit("db", slots=4), Limit("mail", slots=4)])
    await storage.enqueue([priced("a", 3, "db:x"), priced("b", 2, "db:x")])
    assert await claim_ids(storage, 9) == ["a"]
    await storage.enqueue([priced("c", 1, "db:y"), priced("m", 1, "mail")])
    assert await claim_ids(storage, 9) == ["c", "m"]


async def test_law08_a_costly_job_holds_back_no_job_that_has_its_slots(storage: Storage) -> None:
    """With hold="ended" a job that runs again has its slots already, and the costly one waits for them."""
    await storage.set_limits([Limit("db", slots=3, hold="ended")])
    await storage.enqueue([priced("a", 2)])
    first = await claim_one(storage)
    await storage.enqueue([priced("b", 2)])
    assert await claim_ids(storage, 9) == []
    await settle(storage, back(first, delay=0.0))
    assert await claim_ids(storage, 9) == ["a"]
    await settle(storage, done(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_a_job_that_is_not_claimed_holds_back_no_other(storage: Storage) -> None:
    """It has been queued again, so that it could start; only no worker here runs its task."""
    await storage.set_limits([Limit("db", slots=2)])
    await storage.enqueue([priced("a", 2)])
    first = await claim_one(storage)
    await storage.enqueue([priced("b", 1, task="other"), priced("c", 2)])
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(first))
    await storage.enqueue([priced("d", 1)])
    ours = {"t": (None, None)}
    assert await claim_ids(storage, 9, tasks=ours) == ["d"]
    await settle(storage, done(await row(storage, "d")))


@pytest.mark.parametrize("how", ["cancelled", "expired", "cancelled with another"])
async def test_law08_a_costly_job_that_ends_holds_back_no_other(storage: Storage, clock: HandClock, how: str) -> None:
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("a", 3), priced("b", 2, deadline=5.0), priced("c", 1)])
    assert await claim_ids(storage, 9) == ["a"]
    if how == "expired":
        clock.advance(6)
        await advance_due(storage)
    else:
        others = [cancelled(await row(storage, "a"))] if how != "cancelled" else []
        await settle(storage, cancelled(await row(storage, "b")), *others)
    assert await state(storage, "b") in (CANCELLED, FAILED)
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_costly_job_holds_back_jobs_of_two_limits(storage: Storage) -> None:
    """A job is blocked by the limit whose turn it waits for; meanwhile it takes no room in its other limits."""
    await storage.set_limits([Limit("db", slots=4), Limit("mail", slots=1)])
    await storage.enqueue([priced("a", 3), priced("b", 2), job("c", limits=(("mail", 1), ("db", 1)))])
    assert await claim_ids(storage, 9) == ["a"]
    assert (await row(storage, "c")).blocked_on == "db"
    await storage.enqueue([priced("d", 1, "mail")])
    assert await claim_ids(storage, 9) == ["d"]
