"""What goes, and what stays because somebody needs it. Law 9."""

from __future__ import annotations

import pytest

from treadle.core.model import Query
from treadle.errors import UnknownUpstream
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    SUCCEEDED,
    WAITING,
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
    tend,
)


async def test_law09_a_row_goes_after_its_retention(storage: Storage, clock: HandClock) -> None:
    """`keep` counts from the ending, not from the enqueue; at that moment it may go, not before."""
    await storage.enqueue([job("a", keep=100)])
    clock.advance(500)
    await run(storage, "a")
    clock.advance(99)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 1
    assert await storage.get(["a"]) == [None]


async def test_law09_failures_are_kept_by_their_own_rule(storage: Storage, clock: HandClock) -> None:
    """`keep_failed` for the failed, `keep` for the rest."""
    await storage.enqueue(jobs("a b c", keep=100, keep_failed=300))
    await run(storage, "a")
    await run(storage, "b", to=FAILED)
    await run(storage, "c", to=CANCELLED)
    clock.advance(100)
    assert await storage.prune(9) == 2
    assert await states(storage, "a b c") == [None, FAILED, None]
    clock.advance(200)
    assert await storage.prune(9) == 1


async def test_law09_an_outcome_may_say_how_long(storage: Storage, clock: HandClock) -> None:
    """Its `keep` beats both."""
    await storage.enqueue(jobs("a b", keep=100, keep_failed=100))
    await run(storage, "a", keep=1000)
    await run(storage, "b", to=FAILED, keep=1000)
    clock.advance(999)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 2


async def test_law09_a_minute_at_least(storage: Storage, clock: HandClock) -> None:
    """keep=0 leaves time for a repeated settle and a late waiter."""
    await storage.enqueue([job("a", keep=0)])
    a = await claim_one(storage)
    await settle(storage, done(a))
    clock.advance(59)
    assert await storage.prune(9) == 0
    await settle(storage, done(a))
    clock.advance(1)
    assert await storage.prune(9) == 1


async def test_law09_deleting_an_ended_job(storage: Storage, clock: HandClock) -> None:
    """Delete is a settle in the same state with keep 0; only `keep` is assigned."""
    await storage.enqueue([job("a", keep_failed=9000)])
    await run(storage, "a", to=FAILED, result="1", error="e")
    before = await row(storage, "a")
    await settle(storage, out(before, FAILED, keep=0))
    after = await row(storage, "a")
    assert (after.result, after.error, after.ended_at, after.version) == ("1", "e", before.ended_at, before.version)
    assert after.expires_at == clock() + 60
    clock.advance(60)
    assert await storage.prune(9) == 1


async def test_law09_keeping_an_ended_job_longer(storage: Storage, clock: HandClock) -> None:
    """The same the other way, counted from the ending."""
    await storage.enqueue([job("a", keep=100)])
    await run(storage, "a")
    clock.advance(50)
    await settle(storage, out(await row(storage, "a"), SUCCEEDED, keep=500))
    clock.advance(449)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 1


async def test_law09_unfinished_jobs_stay(storage: Storage, clock: HandClock) -> None:
    """In whatever state, for however long."""
    await storage.enqueue([job("line", keep=60), job("later", delay=1e8), job("p", task=""), job("b", after=("p",))])
    await claim_one(storage, lease=1e9)
    clock.advance(1e7)
    assert await storage.prune(99) == 0
    assert None not in await states(storage, "line later p b")


async def test_law09_so_many_at_a_time(storage: Storage, clock: HandClock) -> None:
    """At most `limit`, those that were due first; the answer is how many went."""
    await storage.enqueue([job(f"j{n}", keep=100 + n) for n in range(5)])
    await run(storage, *[f"j{n}" for n in range(5)])
    clock.advance(1000)
    assert await storage.prune(2) == 2
    assert await states(storage, "j0 j1 j2") == [None, None, SUCCEEDED]
    assert await storage.prune(2) == 2
    assert await storage.prune(2) == 1
    assert await storage.prune(2) == 0


async def test_law09_what_a_waiting_job_needs_stays(storage: Storage, clock: HandClock) -> None:
    """Its upstreams are there while it waits, while it runs, and until it has ended."""
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
    assert [each and each.result for each in await storage.get(c.after)] == ["1", "2"]
    await settle(storage, done(c))
    assert await storage.prune(9) == 2


async def test_law09_upstreams_of_a_job_that_will_run_again_stay(storage: Storage, clock: HandClock) -> None:
    """A retry reads them as well."""
    await storage.enqueue([job("a", keep=60), job("b", after=("a",))])
    await run(storage, "a", result="1")
    await settle(storage, back(await claim_one(storage), 5000, attempt=1))
    clock.advance(4000)
    assert await storage.prune(9) == 0
    assert (await row(storage, "a")).result == "1"


async def test_law09_a_workflow_stays_whole(storage: Storage, clock: HandClock) -> None:
    """Children, siblings and ancestors of what is unfinished stay: all of the same root."""
    await storage.enqueue([job("r", keep=60)])
    children = tuple(job(id, root="r", parent="r", keep=60) for id in ("x", "y"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=children, after=("x", "y")))
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


async def test_law09_an_ended_root_stays_while_something_of_it_runs(storage: Storage, clock: HandClock) -> None:
    """A child nobody waits for keeps its ancestors."""
    await storage.enqueue([job("r", keep=60)])
    await settle(storage, done(await claim_one(storage), then=(job("x", root="r", parent="r", delay=500),)))
    clock.advance(100)
    assert await storage.prune(9) == 0
    await settle(storage, cancelled(await row(storage, "x")))
    assert await storage.prune(9) == 1


async def test_law09_the_doomed_are_kept_like_the_cancelled(storage: Storage, clock: HandClock) -> None:
    """`keep` of the doomed job; expired ones like the failed."""
    await storage.enqueue([job("a", deadline=10, keep=100, keep_failed=300), job("b", after=("a",), keep=100)])
    clock.advance(10)
    await tend(storage)
    assert [each and each.expires_at for each in await storage.get(["a", "b"])] == [clock() + 300, clock() + 100]


async def test_law09_a_row_stays_for_as_long_as_its_key(storage: Storage, clock: HandClock) -> None:
    """Whatever was asked for its retention: a key with a window is held by the row."""
    await storage.enqueue([job("a", key="k", key_window=500, keep=0), job("b", key="l", key_window=90, keep=100)])
    clock.advance(10)
    await run(storage, "a", "b")
    assert [each and each.expires_at for each in await storage.get(["a", "b"])] == [clock() + 490, clock() + 100]
    await settle(storage, done(await row(storage, "a"), keep=0))
    clock.advance(489)
    assert await storage.prune(9) == 1
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "a"
    clock.advance(1)
    assert await storage.prune(9) == 1
    assert ids(await storage.enqueue([job("c", key="k")])) == ["c"]


async def test_law09_pruning_tends(storage: Storage, clock: HandClock) -> None:
    """Leases, deadlines and due moments are acted on, though nobody claims."""
    await storage.enqueue([job("a"), job("b", delay=20), job("c", deadline=20, queue="x")])
    await claim_one(storage, lease=10)
    clock.advance(20)
    assert await storage.prune(9) == 0
    rows = [await row(storage, id) for id in "abc"]
    assert [each.state for each in rows] == [READY, READY, FAILED]
    assert (rows[0].lost, rows[1].place) == (1, clock())


async def test_law09_what_was_pruned_is_not_counted(storage: Storage, clock: HandClock) -> None:
    """Gone from get, find and stats."""
    await storage.enqueue([job("a", keep=60)])
    await run(storage, "a")
    clock.advance(60)
    assert await storage.prune(9) == 1
    assert (await storage.stats()).counts == ()
    assert (await storage.find(Query(count=True))).total == 0


async def test_law09_after_pruned_upstreams(storage: Storage, clock: HandClock) -> None:
    """A pruned id is one nobody knows."""
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
