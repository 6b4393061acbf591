"""Versions: an outcome is applied to the version that was claimed, and to no other. Law 3."""

from __future__ import annotations

import pytest

from treadle.core.model import LeaseRenewal, Outcome
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    advance_due,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    jobs,
    out,
    refusal,
    renewal,
    row,
    run,
    said,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

# --- versions


async def test_law03_claim_and_settle_raise_the_version(storage: Storage) -> None:
    """It rises with every claim and every settle of a job."""
    [new] = await storage.enqueue(jobs("a"))
    first = await claim_one(storage)
    await settle(storage, back(first))
    released = await row(storage, "a")
    second = await claim_one(storage)
    await settle(storage, done(second))
    versions = [record.version for record in (new, first, released, second, await row(storage, "a"))]
    assert versions == sorted(set(versions))


async def test_law03_endings_by_the_storage_raise_the_version(storage: Storage, clock: HandClock) -> None:
    """Expired, doomed and superseded jobs have a new version: an older outcome is stale."""
    await storage.enqueue([job("up", deadline=5), job("down", after=("up",)), job("old", key="k", delay=99)])
    before = await storage.get(["up", "down", "old"])
    await storage.enqueue([job("new", key="k", key_conflict="replace", delay=99)])
    clock.advance(6)
    await advance_due(storage)
    assert await states(storage, "up down old") == [FAILED, CANCELLED, CANCELLED]
    assert await said(storage, *(done(record) for record in before if record)) == ["stale"] * 3


@shows("an outcome with an old version changes nothing and stores no follow-up jobs")
@pytest.mark.parametrize("to", [SUCCEEDED, FAILED, CANCELLED, READY, WAITING])
async def test_law03_a_stale_outcome_changes_nothing(storage: Storage, clock: HandClock, to: str) -> None:
    """It returns "stale" and assigns nothing; its `followups` are not stored."""
    await storage.enqueue(jobs("a up"))
    old = await claim_one(storage, lease=10)
    clock.advance(11)
    await claim_one(storage, lease=1000)
    before = await row(storage, "a")
    stale = out(
        old,
        type(before.state)(to),
        delay=7,
        attempt=4,
        result="1",
        value="2",
        error="e",
        reason="error",
        checkpoints=(("s", "1"),),
        note="n",
        followups=(job("child"),),
        after=("up",) if to == WAITING else (),
        keep=5,
    )
    settled = await refusal(storage, stale)
    assert settled.status == "stale"
    assert settled.reason
    assert await row(storage, "a") == before
    assert await storage.get(["child"]) == [None]


async def test_law03_a_version_from_the_future_is_stale(storage: Storage) -> None:
    """Only the current version is valid."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await said(storage, Outcome(id="a", version=a.version + 1, state=SUCCEEDED)) == ["stale"]
    assert await state(storage, "a") is RUNNING


async def test_law03_an_outcome_of_an_unknown_job_is_stale(storage: Storage) -> None:
    """If the job is pruned or unknown, the call raises nothing and stores nothing, not even the `followups`."""
    assert await said(storage, Outcome(id="none", version=1, state=SUCCEEDED, followups=(job("x"),))) == ["stale"]
    assert await storage.get(["none", "x"]) == [None, None]


@shows("a stale outcome leaves the other outcomes of its call alone")
async def test_law03_one_stale_outcome_does_not_touch_the_others(storage: Storage) -> None:
    """Each outcome of a call is independent, and the results are in order."""
    await storage.enqueue(jobs("a b c"))
    a, b, c = await claim(storage, 3)
    await settle(storage, cancelled(b))
    assert await said(storage, done(a), done(b), done(c)) == ["applied", "stale", "applied"]
    assert await states(storage, "a b c") == [SUCCEEDED, CANCELLED, SUCCEEDED]


async def test_law03_two_outcomes_for_one_job_in_one_call(storage: Storage) -> None:
    """The first is applied, and the second is stale."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await said(storage, done(a), failed(a)) == ["applied", "stale"]
    assert await state(storage, "a") is SUCCEEDED


async def test_law03_a_heartbeat_with_a_stale_version_stores_nothing(storage: Storage, clock: HandClock) -> None:
    """The checkpoints and note of a stalled worker are not stored, and the heartbeat returns the job as lost."""
    await storage.enqueue(jobs("a"))
    old = await claim_one(storage, lease=10)
    clock.advance(11)
    await claim_one(storage, worker="other", lease=1000)
    before = await row(storage, "a")
    assert await beat(storage, renewal(old, checkpoints=(("s", "1"),), note="half")) == {"a"}
    assert await row(storage, "a") == before


async def test_law03_a_heartbeat_returns_ended_jobs_as_lost(storage: Storage) -> None:
    """The heartbeat returns cancelled, ended and unknown jobs as lost, and renews the rest."""
    await storage.enqueue(jobs("a b c"))
    a, b, c = await claim(storage, 3)
    await settle(storage, cancelled(a), done(b))
    assert await beat(storage, renewal(a), renewal(b), renewal(c), LeaseRenewal("none", 1)) == {"a", "b", "none"}


async def test_law03_a_heartbeat_returns_a_released_job_as_lost(storage: Storage) -> None:
    """A job settled as ready or waiting has no holder, however recently it was settled."""
    await storage.enqueue(jobs("a b p", priority=1))
    a, b, p = await claim(storage, 3)
    await settle(storage, back(a), out(b, WAITING, after=("p",)))
    assert await beat(storage, renewal(a), renewal(b), renewal(p)) == {"a", "b"}


async def test_law03_a_heartbeat_returns_a_job_never_claimed_as_lost(storage: Storage) -> None:
    """The id and version of a queued job are not enough to hold it."""
    [a] = await storage.enqueue(jobs("a"))
    assert await beat(storage, renewal(a)) == {"a"}
    assert await claim_ids(storage) == ["a"]


@shows("a caller with the current version can settle a queued, delayed, waiting or running job")
async def test_law03_settled_from_outside_with_the_current_version(storage: Storage) -> None:
    """Operators settle as well: a queued, delayed, waiting or running job can be ended by hand."""
    await storage.enqueue([job("line"), job("later", delay=9), job("blocked", after=("later",)), job("p", task="")])
    running = await claim_one(storage)
    await settle(storage, done(await row(storage, "line"), result="1"))
    assert await said(storage, failed(running)) == ["stale"]
    for id in ("blocked", "later", "p"):
        await settle(storage, done(await row(storage, id), result="1"))
    assert await states(storage, "line later blocked p") == [SUCCEEDED] * 4
    assert await claim_ids(storage, 9) == []


async def test_law03_an_ended_job_stays_ended(storage: Storage) -> None:
    """With its current version it cannot end in another way or wait."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", result="1")
    a = await row(storage, "a")
    assert await said(storage, failed(a), cancelled(a), out(a, WAITING), out(a, RUNNING)) == ["stale"] * 4
    assert await row(storage, "a") == a


async def test_law03_an_outcome_assigns_each_field_it_has(storage: Storage, clock: HandClock) -> None:
    """Attempt, result, value, error, reason, note: the storage assigns them and computes nothing."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    clock.advance(2)
    await settle(storage, failed(a, attempt=3, result="1", value="2", error="e", reason="aborted", note="n"))
    a = await row(storage, "a")
    assert (a.state, a.attempt, a.result, a.value, a.error, a.reason, a.note) == (
        FAILED,
        3,
        "1",
        "2",
        "e",
        "aborted",
        "n",
    )
    assert (a.ended_at, a.queue_position, a.due_at, a.pending) == (clock(), None, None, 0)


async def test_law03_fields_without_a_value_in_an_outcome_are_cleared(storage: Storage) -> None:
    """The error of a failed try is cleared when a later try succeeds; `attempt` is the one of the outcome."""
    await storage.enqueue(jobs("a"))
    await settle(storage, back(await claim_one(storage), attempt=1, error="boom", reason="error"))
    assert (await row(storage, "a")).error == "boom"
    again = await claim_one(storage)
    assert (again.attempt, again.error, again.lost) == (1, "boom", 0)
    await settle(storage, done(again, attempt=2))
    a = await row(storage, "a")
    assert (a.attempt, a.error, a.reason) == (2, None, None)
