"""Retrying ended jobs: one settle reopens a job, the jobs it doomed, and each ancestor that failed because of it. Law
5."""

from __future__ import annotations

import pytest

from treadle.core.model import NewJob, Outcome, State
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    SUCCEEDED,
    WAITING,
    advance_due,
    back,
    cancelled,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    jobs,
    out,
    refusal,
    row,
    run,
    said,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows


@pytest.mark.parametrize("ending", [FAILED, CANCELLED, SUCCEEDED])
async def test_law05_reopening_begins_a_new_round(storage: Storage, clock: HandClock, ending: State) -> None:
    """READY on an ended job resets counts, result and error and queues it now; payload and checkpoints stay."""
    await storage.enqueue([job("a", payload="[7]")])
    a = await claim_one(storage)
    await settle(
        storage, out(a, ending, attempt=5, error="boom", reason="error", result="1", checkpoints=(("s", "1"),))
    )
    ended = await row(storage, "a")
    clock.advance(50)
    await settle(storage, back(ended))
    a = await row(storage, "a")
    assert (a.state, a.attempt, a.lost, a.reopenings, a.queue_position) == (READY, 0, 0, 1, clock())
    assert (a.result, a.value, a.error, a.reason, a.ended_at, a.expires_at, a.started_at) == (None,) * 7
    assert (a.job.payload, a.checkpoints, a.created_at) == ("[7]", (("s", "1"),), ended.created_at)
    assert a.version > ended.version
    await run(storage, "a")
    assert await state(storage, "a") is SUCCEEDED


@shows("a job is reopened only with its current version, and only once")
async def test_law05_reopening_is_fenced(storage: Storage) -> None:
    """It needs the current version; repeated, it is applied once."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", to=FAILED)
    ended = await row(storage, "a")
    assert await said(storage, Outcome(id="a", version=ended.version - 5, state=READY)) == ["stale"]
    await settle(storage, back(ended))
    once = await row(storage, "a")
    await settle(storage, back(ended))
    assert await row(storage, "a") == once


async def test_law05_a_job_reopened_with_a_delay_is_queued_after_it(storage: Storage, clock: HandClock) -> None:
    """The job is queued once the delay is over."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a"), 30))
    assert await claim_ids(storage) == []
    clock.advance(30)
    assert await claim_ids(storage) == ["a"]


async def test_law05_reopening_reopens_the_jobs_that_the_failure_cancelled(storage: Storage) -> None:
    """Its dependents, direct and indirect, wait again as before, and run when it succeeds."""
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", after=("b",)), job("other")])
    await run(storage, "other")
    await run(storage, "a", to=FAILED)
    assert await states(storage, "b c") == [CANCELLED, CANCELLED]
    await settle(storage, back(await row(storage, "a")))
    b, c = [await row(storage, id) for id in "bc"]
    assert [(one.state, one.pending, one.reason, one.reopenings) for one in (b, c)] == [(WAITING, 1, None, 1)] * 2
    for id in "abc":
        assert await claim_ids(storage, 9) == [id]
        await settle(storage, done(await row(storage, id)))


async def test_law05_reopening_a_chain_of_two_thousand(storage: Storage) -> None:
    """Reopening works to any depth."""
    await storage.enqueue([job("j0000"), *(job(f"j{n:04}", after=(f"j{n - 1:04}",)) for n in range(1, 2_000))])
    await run(storage, "j0000", to=FAILED)
    await settle(storage, back(await row(storage, "j0000")))
    last = await row(storage, "j1999")
    assert (last.state, last.reopenings) == (WAITING, 1)


async def test_law05_reopening_leaves_alone_what_was_cancelled_by_hand(storage: Storage) -> None:
    """The reopened job did not cause that ending."""
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", after=("b",))])
    await settle(storage, cancelled(await row(storage, "b")))
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    assert await states(storage, "b c") == [CANCELLED, CANCELLED]


async def test_law05_reopening_one_of_two_upstreams(storage: Storage) -> None:
    """Upstreams that succeeded are not waited for again."""
    await storage.enqueue([*jobs("a b"), job("c", after=("a", "b"), queue="c")])
    await run(storage, "a")
    await run(storage, "b", to=FAILED)
    await settle(storage, back(await row(storage, "b")))
    c = await row(storage, "c")
    assert (c.state, c.pending, c.failures_allowed) == (WAITING, 1, 0)
    await run(storage, "b")
    assert await claim_ids(storage, 1, "c") == ["c"]


async def test_law05_reopening_while_another_upstream_is_dead(storage: Storage) -> None:
    """The other upstream's failure still dooms it; once both are reopened it waits for both."""
    await storage.enqueue([*jobs("a b"), job("c", after=("a", "b"), queue="c")])
    await run(storage, "a", "b", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    assert ((await row(storage, "c")).state, (await row(storage, "c")).reason) == (CANCELLED, "upstream")
    await settle(storage, back(await row(storage, "b")))
    assert ((await row(storage, "c")).state, (await row(storage, "c")).pending) == (WAITING, 2)
    await run(storage, "a", "b")
    assert await claim_ids(storage, 1, "c") == ["c"]


async def test_law05_reopening_takes_back_an_allowed_failure(storage: Storage) -> None:
    """A waiting job that had allowed for that failure takes it back and waits for the new ending."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), required=2, failures_allowed=1, queue="z")])
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    assert ((await row(storage, "z")).pending, (await row(storage, "z")).failures_allowed) == (2, 1)
    await run(storage, "b", to=FAILED)
    await run(storage, "a")
    assert await state(storage, "z") is WAITING
    await run(storage, "c")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_reopening_counts_again_for_a_job_that_waits_in_its_run(storage: Storage) -> None:
    """A job that waits in its run, with its own `required`, counts only the second ending."""
    await storage.enqueue([*jobs("a b c"), job("w", queue="w")])
    await settle(
        storage, out(await claim_one(storage, "w"), WAITING, after=("a", "b", "c"), required=2, failures_allowed=1)
    )
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    assert ((await row(storage, "w")).pending, (await row(storage, "w")).failures_allowed) == (2, 1)
    await run(storage, "a")
    assert ((await row(storage, "w")).pending, (await row(storage, "w")).failures_allowed) == (1, 1)
    await run(storage, "b")
    assert await claim_ids(storage, 1, "w") == ["w"]


async def test_law05_reopening_reopens_ancestors(storage: Storage) -> None:
    """A parent that failed because of its children waits for this one again, and then ends again."""
    await storage.enqueue([job("g"), job("after-g", after=("g",), queue="later")])
    await settle(
        storage,
        out(await claim_one(storage), WAITING, function_done=True, followups=(job("p", parent="g"),), after=("p",)),
    )
    children = (job("x", parent="p"), job("y", parent="p"))
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=children, after=("x", "y"))
    )
    await run(storage, "y")
    await run(storage, "x", to=FAILED)
    await run(storage, "p", to=FAILED, reason="children")
    await run(storage, "g", to=FAILED, reason="children")
    assert await states(storage, "g p x after-g") == [FAILED, FAILED, FAILED, CANCELLED]

    await settle(storage, back(await row(storage, "x")))
    assert await states(storage, "g p x y after-g") == [WAITING, WAITING, READY, SUCCEEDED, WAITING]
    assert [(await row(storage, id)).pending for id in ("g", "p", "after-g")] == [1, 1, 1]
    for id in "xpg":
        record = await claim_one(storage)
        assert (record.job.id, record.function_done) == (id, id != "x")
        await settle(storage, done(record))
    assert await state(storage, "after-g") is READY


async def test_law05_reopening_leaves_a_parent_that_failed_by_itself(storage: Storage) -> None:
    """The child did not cause that failure."""
    await storage.enqueue([job("p"), job("x", parent="p")])
    await run(storage, "p", "x", to=FAILED)
    await settle(storage, back(await row(storage, "x")))
    assert await states(storage, "p x") == [FAILED, READY]


async def _parent_of(storage: Storage, *children: NewJob) -> None:
    """Store a parent that waits for these children."""
    await storage.enqueue([job("p", queue="p")])
    after = tuple(child.id for child in children)
    p = await claim_one(storage, "p")
    await settle(storage, out(p, WAITING, function_done=True, followups=children, after=after, failures_allowed=None))


async def test_law05_an_ending_that_names_a_reopened_job_is_stale(storage: Storage) -> None:
    """A worker has read the failed child of a job before the child was reopened: the job does not fail because of it,
    and waits again."""
    await _parent_of(storage, job("x", parent="p"), job("y", parent="p"))
    await run(storage, "y")
    await run(storage, "x", to=FAILED)
    p = await claim_one(storage, "p")
    ending = failed(p, reason="children", after=("x",))
    await settle(storage, back(await row(storage, "x")))
    answer = await refusal(storage, ending)
    assert (answer.status, answer.reason) == ("stale", "x is ready")
    assert await row(storage, "p") == p

    await settle(storage, out(p, WAITING, function_done=True, after=("x", "y"), failures_allowed=None))
    assert await claim_ids(storage, 1, "p") == []
    await run(storage, "x")
    await settle(storage, done(await claim_one(storage, "p")))
    assert await states(storage, "p x y") == [SUCCEEDED] * 3


async def test_law05_an_ending_that_names_a_job_that_has_succeeded_since_is_stale(storage: Storage) -> None:
    """The child was reopened and has succeeded before the outcome of its parent came."""
    await _parent_of(storage, job("x", parent="p"))
    await run(storage, "x", to=FAILED)
    p = await claim_one(storage, "p")
    await settle(storage, back(await row(storage, "x")))
    await run(storage, "x")
    answer = await refusal(storage, failed(p, reason="children", after=("x",)))
    assert (answer.status, answer.reason) == ("stale", "x is succeeded")
    await settle(storage, out(p, WAITING, function_done=True, after=("x",), failures_allowed=None))
    await settle(storage, done(await claim_one(storage, "p")))


async def test_law05_an_ending_applies_if_the_jobs_it_names_have_failed(storage: Storage) -> None:
    """The ending still applies if such a job has failed again, or was reopened meanwhile and so reopens its parent."""
    await _parent_of(storage, job("x", parent="p"), job("y", parent="p"))
    await run(storage, "x", "y", to=FAILED)
    p = await claim_one(storage, "p")
    ending = failed(p, reason="children", after=("x", "y"))
    await settle(storage, back(await row(storage, "x")))
    await run(storage, "x", to=FAILED)
    assert await said(storage, ending, ending) == ["applied", "applied"]
    assert await state(storage, "p") is FAILED
    await settle(storage, back(await row(storage, "x")))
    assert await states(storage, "p x y") == [WAITING, READY, FAILED]


async def test_law05_an_ending_names_only_jobs_that_its_job_has_waited_for(storage: Storage) -> None:
    """The answer does not reveal whether another job exists or has ended."""
    await _parent_of(storage, job("x", parent="p"))
    await storage.enqueue(jobs("other"))
    await run(storage, "x", to=FAILED)
    p = await claim_one(storage, "p")
    for id in ("other", "unknown"):
        answer = await refusal(storage, failed(p, reason="children", after=("x", id)))
        assert (answer.status, id in str(answer.reason)) == ("refused", True)
    assert await row(storage, "p") == p
    await settle(storage, failed(p, reason="children", after=("x",)))


async def test_law05_reopening_takes_the_key_again(storage: Storage) -> None:
    """It is unfinished again, and other jobs with that key are deduplicated to it."""
    await storage.enqueue([job("a", key="k")])
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    [answered] = await storage.enqueue([job("b", key="k")])
    assert answered.job.id == "a"


async def test_law14_reopening_with_a_key_held_is_refused(storage: Storage) -> None:
    """Another job holds its key by now: nothing changes, the reason names the holder, and it works later."""
    await storage.enqueue([job("a", key="k"), job("down", after=("a",))])
    await run(storage, "a", to=FAILED)
    await storage.enqueue([job("b", key="k")])
    before = await storage.get(["a", "b", "down"])
    refused = await refusal(storage, back(await row(storage, "a")))
    assert refused.status == "refused"
    assert refused.reason
    assert "b" in refused.reason
    assert await storage.get(["a", "b", "down"]) == before
    await run(storage, "b")
    await settle(storage, back(await row(storage, "a")))


async def test_law14_reopening_with_the_key_of_a_cancelled_dependent_held_is_refused(storage: Storage) -> None:
    """Either everything is reopened or nothing: the jobs that it doomed take their keys again too."""
    await storage.enqueue([job("a"), job("down", after=("a",), key="k")])
    await run(storage, "a", to=FAILED)
    await storage.enqueue([job("b", key="k", delay=99)])
    assert await said(storage, back(await row(storage, "a"))) == ["refused"]
    assert await states(storage, "a down b") == [FAILED, CANCELLED, READY]


@shows("a reopened job gets its whole deadline again")
async def test_law05_a_reopened_job_has_its_whole_deadline(storage: Storage, clock: HandClock) -> None:
    """It counts from the reopening; otherwise an expired job would expire again at once."""
    await storage.enqueue([job("a", deadline=10)])
    clock.advance(10)
    await advance_due(storage)
    clock.advance(100)
    await settle(storage, back(await row(storage, "a")))
    assert (await row(storage, "a")).deadline_at == clock() + 10
    clock.advance(9)
    assert await claim_ids(storage) == ["a"]


async def test_law05_reopened_jobs_are_kept(storage: Storage, clock: HandClock) -> None:
    """Retention counts from the new ending."""
    await storage.enqueue([job("a", keep_failed=100, keep=100)])
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    clock.advance(500)
    assert await storage.prune(9) == 0
    await run(storage, "a")
    clock.advance(99)
    assert await storage.prune(9) == 0


async def test_law05_waiting_for_a_reopened_job(storage: Storage) -> None:
    """A job enqueued after the reopening waits for the new ending."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", to=FAILED)
    await settle(storage, back(await row(storage, "a")))
    [b] = await storage.enqueue([job("b", after=("a",))])
    assert b.state is WAITING
    await run(storage, "a")
    assert await state(storage, "b") is READY


async def test_law05_a_job_may_be_reopened_twice(storage: Storage) -> None:
    """`reopenings` counts, and dependents are doomed and reopened each time."""
    await storage.enqueue([job("a"), job("b", after=("a",))])
    for n in range(1, 4):
        await run(storage, "a", to=FAILED)
        assert await state(storage, "b") is CANCELLED
        await settle(storage, back(await row(storage, "a")))
        assert [(await row(storage, id)).reopenings for id in "ab"] == [n, n]
    await run(storage, "a")
    assert await claim_ids(storage) == ["b"]
