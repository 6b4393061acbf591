"""Jobs of different costs under one limit: none is starved by cheaper ones behind it. Law 8."""

from __future__ import annotations

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import NewJob
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    back,
    claim_ids,
    claim_one,
    done,
    job,
    row,
    settle,
)
from treadle.testing.shows import shows


def priced(id: str, cost: int, limit: str = "db", **options: object) -> NewJob:
    return job(id, limits=((limit, cost),), **options)


@shows("a costly job is not starved by cheaper ones that come later")
async def test_law08_a_costly_job_is_not_starved_by_later_ones(storage: Storage) -> None:
    """A slot is free for the cheap ones, but they are behind a job that needs more of them."""
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("first", 3)])
    first = await claim_one(storage)
    await storage.enqueue([priced("big", 3)])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([priced("late", 1)])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([priced("later", 1)])
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(first))
    assert await claim_ids(storage, 9) == ["big", "late"]
    await settle(storage, done(await row(storage, "big")))
    assert await claim_ids(storage, 9) == ["later"]


async def test_law08_a_costly_job_is_not_passed_in_the_claim_that_blocks_it(storage: Storage) -> None:
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("first", 3), priced("big", 2), priced("small", 1), job("free")])
    assert await claim_ids(storage, 9) == ["first", "free"]
    await settle(storage, done(await row(storage, "first")))
    assert await claim_ids(storage, 9) == ["big", "small"]


@shows("jobs of equal cost start in order behind a costly one that a rate holds back")
@pytest.mark.parametrize("how", ["window", "bucket"])
async def test_law08_a_rate_starts_jobs_of_all_costs_in_order(storage: Storage, clock: HandClock, how: str) -> None:
    """A rate has enough left for a cheap job, but not for the costly one before it."""
    await storage.set_limits([Limit("db", rate=4, per=8.0, how=how)])  # type: ignore[arg-type]
    await storage.enqueue([priced("a", 2)])
    assert await claim_ids(storage, 9) == ["a"]
    await storage.enqueue([priced("b", 4), priced("c", 1)])
    assert await claim_ids(storage, 9) == []
    found: list[str] = []
    for n in range(4):
        await storage.enqueue([priced(f"d{n}", 1)])
        clock.advance(1)
        found += await claim_ids(storage, 9)
    assert found == (["b"] if how == "bucket" else [])
    while len(found) < 6:
        clock.advance(1)
        found += await claim_ids(storage, 9)
    assert found == ["b", "c", "d0", "d1", "d2", "d3"]


async def test_law08_a_job_of_a_higher_priority_passes_a_costly_one(storage: Storage) -> None:
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("first", 3)])
    assert await claim_ids(storage, 9) == ["first"]
    await storage.enqueue([priced("big", 2)])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([priced("urgent", 1, priority=1), priced("small", 1)])
    assert await claim_ids(storage, 9) == ["urgent"]


async def test_law08_a_costly_job_holds_back_no_other_queue(storage: Storage) -> None:
    """A queue that is paused, or that nobody serves, would otherwise stop all the others."""
    await storage.set_limits([Limit("db", slots=4)])
    await storage.enqueue([priced("first", 3), priced("big", 2)])
    assert await claim_ids(storage, 9) == ["first"]
    await storage.enqueue([priced("small", 1, queue="other")])
    assert await claim_ids(storage, 9, "other") == ["small"]


async def test_law08_a_costly_job_holds_back_no_other_limit(storage: Storage) -> None:
    """Nor another partition of its limit."""
    await storage.set_limits([Limit("db", slots=4), Limit("mail", slots=4)])
    await storage.enqueue([priced("first", 3, "db:x"), priced("big", 2, "db:x")])
    assert await claim_ids(storage, 9) == ["first"]
    await storage.enqueue([priced("small", 1, "db:y"), priced("mail", 1, "mail")])
    assert await claim_ids(storage, 9) == ["small", "mail"]


async def test_law08_a_costly_job_holds_back_no_job_that_has_its_slots(storage: Storage) -> None:
    """With hold="ended" a job that runs again has its slots already, and the costly one waits for them."""
    await storage.set_limits([Limit("db", slots=3, hold="ended")])
    await storage.enqueue([priced("first", 2)])
    first = await claim_one(storage)
    await storage.enqueue([priced("big", 2)])
    assert await claim_ids(storage, 9) == []
    await settle(storage, back(first, delay=0.0))
    assert await claim_ids(storage, 9) == ["first"]
    await settle(storage, done(await row(storage, "first")))
    assert await claim_ids(storage, 9) == ["big"]


async def test_law08_a_job_that_nobody_claims_holds_back_no_other(storage: Storage) -> None:
    """It has been queued again, so that it could start; only no worker here runs its task."""
    await storage.set_limits([Limit("db", slots=2)])
    await storage.enqueue([priced("first", 2)])
    first = await claim_one(storage)
    await storage.enqueue([priced("foreign", 1, task="other"), priced("second", 2)])
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(first))
    await storage.enqueue([priced("third", 1)])
    ours = {"t": (None, None)}
    assert await claim_ids(storage, 9, tasks=ours) == ["third"]
    await settle(storage, done(await row(storage, "third")))
