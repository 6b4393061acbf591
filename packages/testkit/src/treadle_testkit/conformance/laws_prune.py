"""Retention: which rows prune deletes, and which stay because other jobs need them. Law 9."""

from __future__ import annotations

import pytest

from treadle.core.errors import UnknownUpstream
from treadle.core.query_model import Query
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
    ids,
    job,
    jobs,
    out,
    row,
    run,
    settle,
    states,
)
from treadle_testkit.shows import shows


async def test_law09_a_row_is_deleted_after_its_retention(storage: Storage, clock: HandClock) -> None:
    """`keep` counts from the ending, not from the enqueue; the row may be deleted then and not before."""
    await storage.enqueue([job("a", keep=100)])
    clock.advance(500)
    await run(storage, "a")
    clock.advance(99)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 1
    assert await storage.get(["a"]) == [None]


async def test_law09_failures_are_kept_by_their_own_rule(storage: Storage, clock: HandClock) -> None:
    """`keep_failed` for failed jobs, `keep` for the others."""
    await storage.enqueue(jobs("a b c", keep=100, keep_failed=300))
    await run(storage, "a")
    await run(storage, "b", to=FAILED)
    await run(storage, "c", to=CANCELLED)
    clock.advance(100)
    assert await storage.prune(9) == 2
    assert await states(storage, "a b c") == [None, FAILED, None]
    clock.advance(200)
    assert await storage.prune(9) == 1


async def test_law09_an_outcome_may_set_the_retention(storage: Storage, clock: HandClock) -> None:
    """The outcome's `keep` takes precedence over both."""
    await storage.enqueue(jobs("a b", keep=100, keep_failed=100))
    await run(storage, "a", keep=1000)
    await run(storage, "b", to=FAILED, keep=1000)
    clock.advance(999)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 2


async def test_law09_an_ended_row_stays_for_a_minute_at_least(storage: Storage, clock: HandClock) -> None:
    """With keep=0 there is still time for a repeated settle and a late waiter."""
    await storage.enqueue([job("a", keep=0)])
    a = await claim_one(storage)
    await settle(storage, done(a))
    clock.advance(59)
    assert await storage.prune(9) == 0
    await settle(storage, done(a))
    clock.advance(1)
    assert await storage.prune(9) == 1


async def test_law09_a_delete_sets_the_retention_of_an_ended_job(storage: Storage, clock: HandClock) -> None:
    """A delete is a settle in the same state with keep=0, which assigns only `keep`."""
    await storage.enqueue([job("a", keep_failed=9000)])
    await run(storage, "a", to=FAILED, result="1", error="e")
    before = await row(storage, "a")
    await settle(storage, out(before, FAILED, keep=0))
    after = await row(storage, "a")
    assert (after.result, after.error, after.ended_at, after.version) == ("1", "e", before.ended_at, before.version)
    assert after.expires_at == clock() + 60
    clock.advance(60)
    assert await storage.prune(9) == 1


async def test_law09_an_ended_job_can_be_kept_longer(storage: Storage, clock: HandClock) -> None:
    """A longer `keep` also counts from the ending."""
    await storage.enqueue([job("a", keep=100)])
    await run(storage, "a")
    clock.advance(50)
    await settle(storage, out(await row(storage, "a"), SUCCEEDED, keep=500))
    clock.advance(449)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 1


async def test_law09_unfinished_jobs_stay(storage: Storage, clock: HandClock) -> None:
    """A job stays as long as it is unfinished, whatever its state and age."""
    await storage.enqueue([job("line", keep=60), job("later", delay=1e8), job("p", task=""), job("b", after=("p",))])
    await claim_one(storage, lease=1e9)
    clock.advance(1e7)
    assert await storage.prune(99) == 0
    assert None not in await states(storage, "line later p b")


async def test_law09_prune_deletes_no_more_than_its_limit(storage: Storage, clock: HandClock) -> None:
    """At most `limit` rows, those due first; returns how many were deleted."""
    await storage.enqueue([job(f"j{n}", keep=100 + n) for n in range(5)])
    await run(storage, *[f"j{n}" for n in range(5)])
    clock.advance(1000)
    assert await storage.prune(2) == 2
    assert await states(storage, "j0 j1 j2") == [None, None, SUCCEEDED]
    assert await storage.prune(2) == 2
    assert await storage.prune(2) == 1
    assert await storage.prune(2) == 0


@shows("a prune keeps the upstreams of an unfinished job")
async def test_law09_upstreams_of_an_unfinished_job_stay(storage: Storage, clock: HandClock) -> None:
    """Its upstreams stay while it waits, while it runs, and until it has ended."""
    await storage.enqueue([*jobs("a b", keep=60), job("c", after=("a", "b")), job("z", keep=60)])
    await run(storage, "a", "z", result="1")
    clock.advance(61)
    assert await storage.prune(9) == 1
    assert await states(storage, "a z") == [SUCCEEDED, None]
    await run(storage, "b", result="2")
    clock.advance(61)
    assert await storage.prune(9) == 0
    c = await claim_one(storage, lease=9000)
    assert await storage.prune(9) == 0
    assert [record and record.result for record in await storage.get(c.after)] == ["1", "2"]
    await settle(storage, done(c))
    assert await storage.prune(9) == 2


async def test_law09_upstreams_of_a_job_that_will_run_again_stay(storage: Storage, clock: HandClock) -> None:
    """A retry reads their results too."""
    await storage.enqueue([job("a", keep=60), job("b", after=("a",))])
    await run(storage, "a", result="1")
    await settle(storage, back(await claim_one(storage), 5000, attempt=1))
    clock.advance(4000)
    assert await storage.prune(9) == 0
    assert (await row(storage, "a")).result == "1"


@shows("a prune keeps every job of an unfinished workflow")
async def test_law09_a_workflow_stays_whole(storage: Storage, clock: HandClock) -> None:
    """Children, siblings and ancestors of an unfinished job stay: all with the same root."""
    await storage.enqueue([job("r", keep=60)])
    children = tuple(job(id, root="r", parent="r", keep=60) for id in ("x", "y"))
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=children, after=("x", "y"))
    )
    await run(storage, "x")
    clock.advance(100)
    assert await storage.prune(9) == 0
    await run(storage, "y", keep=9000)
    clock.advance(100)
    assert await storage.prune(9) == 0
    await run(storage, "r")
    clock.advance(100)
    assert await storage.prune(9) == 2
    assert await states(storage, "r x y") == [None, None, SUCCEEDED]


@shows("a prune deletes a row without a task that was settled with `keep=0`, also while its workflow continues")
async def test_law09_a_released_row_does_not_wait_for_its_workflow(storage: Storage, clock: HandClock) -> None:
    """Messages that a job has received are such rows. One that is not released stays, and one that a job names."""
    rows = tuple(job(id, task="", root="r", parent="r", keep=60.5, keep_failed=300) for id in ("a", "b", "c", "d"))
    await storage.enqueue([job("r", keep=60), *rows])
    held = await claim_one(storage)
    for id in ("a", "b", "c"):
        await settle(storage, done(await row(storage, id)))
        if id != "c":
            await settle(storage, done(await row(storage, id), keep=0))
    await settle(storage, cancelled(await row(storage, "d"), keep=0))
    await settle(storage, out(held, WAITING, after=("b",), delay=1000))
    clock.advance(100)
    assert await storage.prune(9) == 2
    assert await states(storage, "a b c d") == [None, SUCCEEDED, SUCCEEDED, None]
    await run(storage, "r")
    clock.advance(100)
    assert await storage.prune(9) == 3


async def test_law09_an_ended_root_stays_while_a_descendant_runs(storage: Storage, clock: HandClock) -> None:
    """A child that no job waits for keeps its ancestors."""
    await storage.enqueue([job("r", keep=60)])
    await settle(storage, done(await claim_one(storage), followups=(job("x", root="r", parent="r", delay=500),)))
    clock.advance(100)
    assert await storage.prune(9) == 0
    await settle(storage, cancelled(await row(storage, "x")))
    assert await storage.prune(9) == 1


async def test_law09_jobs_cancelled_by_a_failure_are_kept_like_other_cancelled_jobs(
    storage: Storage, clock: HandClock
) -> None:
    """A doomed job is kept for its `keep`, an expired one for its `keep_failed`."""
    await storage.enqueue([job("a", deadline=10, keep=100, keep_failed=300), job("b", after=("a",), keep=100)])
    clock.advance(10)
    await advance_due(storage)
    assert [record and record.expires_at for record in await storage.get(["a", "b"])] == [clock() + 300, clock() + 100]


async def test_law09_a_row_stays_for_as_long_as_its_key(storage: Storage, clock: HandClock) -> None:
    """The row holds a key with a window, so it stays as long as that, whatever its retention is."""
    await storage.enqueue([job("a", key="k", key_window=500, keep=0), job("b", key="l", key_window=90, keep=100)])
    clock.advance(10)
    await run(storage, "a", "b")
    assert [record and record.expires_at for record in await storage.get(["a", "b"])] == [clock() + 490, clock() + 100]
    await settle(storage, done(await row(storage, "a"), keep=0))
    clock.advance(489)
    assert await storage.prune(9) == 1
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "a"
    clock.advance(1)
    assert await storage.prune(9) == 1
    assert ids(await storage.enqueue([job("c", key="k")])) == ["c"]


async def test_law09_pruning_advances_due_rows(storage: Storage, clock: HandClock) -> None:
    """Expired leases, deadlines and due jobs are advanced even if no worker claims."""
    await storage.enqueue([job("a"), job("b", delay=20), job("c", deadline=20, queue="x")])
    await claim_one(storage, lease=10)
    clock.advance(20)
    assert await storage.prune(9) == 0
    rows = [await row(storage, id) for id in "abc"]
    assert [record.state for record in rows] == [READY, READY, FAILED]
    assert (rows[0].lost, rows[1].queue_position) == (1, clock())


async def test_law09_pruned_rows_are_not_counted(storage: Storage, clock: HandClock) -> None:
    """Deleted rows are gone from get, find and stats."""
    await storage.enqueue([job("a", keep=60)])
    await run(storage, "a")
    clock.advance(60)
    assert await storage.prune(9) == 1
    assert (await storage.stats()).counts == ()
    assert (await storage.find(Query(count=True))).total == 0


async def test_law09_a_pruned_upstream_is_unknown(storage: Storage, clock: HandClock) -> None:
    """A pruned id counts as unknown."""
    await storage.enqueue([job("a", keep=60)])
    await run(storage, "a")
    clock.advance(60)
    await storage.prune(9)
    with pytest.raises(UnknownUpstream):
        await storage.enqueue([job("b", after=("a",))])
    [b] = await storage.enqueue([job("b", after=("a",), wait_timeout=60)])
    assert b.state is WAITING
    await storage.enqueue(jobs("a"))
    await run(storage, "a")
    assert await claim_ids(storage) == ["b"]
