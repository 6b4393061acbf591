"""Slots: how many jobs of a limit run at once, and how blocked jobs come back. Law 8."""

from __future__ import annotations

import pytest

from treadle.core.limit_model import Limit
from treadle.core.query_model import Query
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    READY,
    RUNNING,
    WAITING,
    advance_due,
    back,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    failed,
    job,
    jobs,
    names,
    out,
    row,
    run_out,
    settle,
    standing,
)
from treadle_testkit.shows import shows

# --- slots


@shows("a limit never lets more jobs run at once than it has slots")
async def test_law08_slots_bound_the_running_jobs(storage: Storage) -> None:
    """Never more at once than the rule allows; each ending admits the next job, in order."""
    await storage.set_limits([Limit("api", slots=2)])
    await storage.enqueue(jobs(names(0, 5), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00", "j01"]
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(await row(storage, "j01")))
    assert await claim_ids(storage, 9) == ["j02"]
    await settle(storage, failed(await row(storage, "j00")), done(await row(storage, "j02")))
    assert await claim_ids(storage, 9) == ["j03", "j04"]


@shows("a hundred jobs that a limit blocks do not hold up the jobs behind them")
async def test_law08_a_used_up_limit_blocks_no_other_job(storage: Storage, clock: HandClock) -> None:
    """A hundred jobs of a tenant are at the head of the queue. A claim returns jobs of others, or the next ones do, if
    the storage bounds the time of a claim."""
    await storage.set_limits([Limit("tenant", slots=2)])
    await storage.enqueue(jobs(names(0, 100, "a"), limits=(("tenant:a", 1),)))
    clock.advance(1)
    await storage.enqueue([job("b", limits=(("tenant:b", 1),)), job("free")])
    ids = [id for _ in range(3) for id in await claim_ids(storage, 10)]
    assert ids == ["a00", "a01", "b", "free"]


@shows("each partition of a limit counts by itself")
async def test_law08_partitions_count_apart(storage: Storage) -> None:
    """`name:partition` follows the rule of `name`, each partition by itself, unless it has a rule of its own."""
    await storage.set_limits([Limit("tenant", slots=1), Limit("tenant:b", slots=2)])
    for tenant in "abc":
        await storage.enqueue(jobs(names(0, 3, tenant), limits=((f"tenant:{tenant}", 1),)))
    assert await claim_ids(storage, 9) == ["a00", "b00", "b01", "c00"]


async def test_law08_a_limit_without_a_rule_is_open(storage: Storage) -> None:
    """A limit without a rule blocks no job."""
    await storage.enqueue(jobs(names(0, 5), limits=(("api", 1), ("tenant:x", 3))))
    assert len(await claim_ids(storage, 9)) == 5


@shows("jobs of two queues share a limit")
async def test_law08_queues_share_a_limit(storage: Storage) -> None:
    """A limit counts the jobs of all queues."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue([job("a", limits=(("api", 1),), queue="x"), job("b", limits=(("api", 1),), queue="y")])
    assert await claim_ids(storage, 9, "x", "y") == ["a"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9, "x", "y") == ["b"]


async def test_law08_a_cost_takes_so_many_slots(storage: Storage) -> None:
    """A job with cost 2 takes two slots."""
    await storage.set_limits([Limit("gpu", slots=3)])
    await storage.enqueue(
        [job("a", limits=(("gpu", 2),)), job("b", limits=(("gpu", 1),)), job("c", limits=(("gpu", 2),))]
    )
    assert await claim_ids(storage, 9) == ["a", "b"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_cost_beyond_the_rule_runs_alone(storage: Storage) -> None:
    """It counts as the whole rule: it starts when no other job runs, and no other job starts while it runs."""
    await storage.set_limits([Limit("gpu", slots=3)])
    await storage.enqueue([job("a", limits=(("gpu", 1),)), job("big", limits=(("gpu", 50),))])
    assert await claim_ids(storage, 9) == ["a"]
    await run_out(storage, "a")
    await storage.enqueue([job("c", limits=(("gpu", 1),), priority=-1)])
    assert await claim_ids(storage, 9) == ["big"]
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "big")
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_lost_lease_frees_its_slot(storage: Storage, clock: HandClock) -> None:
    """The slot of a dead worker becomes free."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("a b", limits=(("one", 1),)))
    assert await claim_ids(storage, 9, lease=30) == ["a"]
    assert await claim_ids(storage, 9) == []
    clock.advance(31)
    assert len(await claim_ids(storage, 9, lease=30)) == 1
    assert await claim_ids(storage, 9) == []


@shows("a run frees its slot, whatever its outcome")
@pytest.mark.parametrize("ending", ["done", "failed", "cancelled", "back", "later"])
async def test_law08_a_run_frees_its_slot_with_any_outcome(storage: Storage, ending: str) -> None:
    """The run succeeds, fails, is cancelled, or is released with or without a delay."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("a b", limits=(("one", 1),)))
    a = await claim_one(storage)
    assert await claim_ids(storage) == []
    outcomes = {"done": done(a), "failed": failed(a), "cancelled": cancelled(a), "back": back(a), "later": back(a, 60)}
    await settle(storage, outcomes[ending])
    assert len(await claim_ids(storage, 9)) == 1


async def test_law08_a_job_obeys_each_of_its_limits(storage: Storage) -> None:
    """A job starts when all its limits admit it."""
    await storage.set_limits([Limit("x", slots=1), Limit("y", slots=1)])
    await storage.enqueue(
        [job("a", limits=(("x", 1),)), job("b", limits=(("x", 1), ("y", 1))), job("c", limits=(("y", 1),))]
    )
    assert await claim_ids(storage, 9) == ["a", "c"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "c")
    assert await claim_ids(storage, 9) == ["b"]


# --- blocked jobs and their return


async def test_law08_a_blocked_job_leaves_the_queue(storage: Storage) -> None:
    """It is not queued and shows the name of the limit, so that claims stay cheap; it keeps its turn."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs(names(0, 4), limits=(("one", 1),)))
    await claim_ids(storage, 1)
    assert await standing(storage) == (3, 0)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 3)
    blocked = await row(storage, "j01")
    assert (blocked.state, blocked.queue_position, blocked.blocked_on, blocked.due_at) == (READY, None, "one", None)
    assert blocked.return_position is not None


async def test_law08_a_claim_blocks_only_the_jobs_that_it_passes(storage: Storage) -> None:
    """A claim blocks the jobs that it passes on its way to those it takes, and none behind them."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([*jobs(names(0, 3), limits=(("one", 1),)), job("k"), *jobs("x y", limits=(("one", 1),))])
    assert await claim_ids(storage, 2) == ["j00", "k"]
    assert await standing(storage) == (2, 2)


async def test_law08_as_many_jobs_are_unblocked_as_slots_are_free(storage: Storage) -> None:
    """When two slots become free, two jobs are queued again, in order, and no more."""
    await storage.set_limits([Limit("two", slots=2)])
    await storage.enqueue(jobs(names(0, 10), limits=(("two", 1),)))
    first = await claim(storage, 9)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 8)
    await settle(storage, done(first[0]))
    assert await standing(storage) == (1, 7)
    await settle(storage, done(first[1]))
    assert await standing(storage) == (2, 6)
    assert await claim_ids(storage, 9) == ["j02", "j03"]
    assert await standing(storage) == (0, 6)


async def test_law08_each_limit_freed_in_one_call_unblocks_the_jobs_that_fit(
    storage: Storage, clock: HandClock
) -> None:
    """Endings of two limits in one call: each limit admits as many jobs as it has room for, in order and by cost."""
    await storage.set_limits([Limit("two", slots=2), Limit("three", slots=3)])
    await storage.enqueue([*jobs(names(0, 2), limits=(("two", 1), ("three", 1))), job("free")])
    clock.advance(1)
    await storage.enqueue(jobs("a b c d", limits=(("two", 1),)))
    await storage.enqueue(jobs("p q", limits=(("three", 2),)))
    first = await claim(storage, 3)
    assert await claim_ids(storage, 9) == []
    await settle(storage, *(done(record) for record in first))
    assert await standing(storage) == (3, 3)
    assert await claim_ids(storage, 9) == ["a", "b", "p"]
    assert await standing(storage) == (0, 3)


async def test_law08_jobs_unblocked_in_one_call_keep_their_order(storage: Storage, clock: HandClock) -> None:
    """A job that joins a lane before a slot becomes free is not queued behind the job that this slot admits."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("held", limits=(("one", 1),)), job("other")])
    held, other = await claim(storage, 2)
    await storage.enqueue([job("blocked", limits=(("one", 1),), lane="l")])
    assert await claim_ids(storage, 9) == []
    clock.advance(10)
    await settle(storage, done(other, followups=(job("new", lane="l"),)), done(held))
    assert (await row(storage, "new")).queue_position == clock()
    assert await claim_ids(storage, 9) == ["blocked", "new"]


async def test_law08_a_freed_slot_is_taken_once(storage: Storage) -> None:
    """Another ending does not admit a second job for a slot that is already promised."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs(names(0, 5), limits=(("one", 1),)))
    await claim_ids(storage, 1)
    await claim_ids(storage, 9)
    await settle(storage, done(await row(storage, "j00")))
    await settle(storage, cancelled(await row(storage, "j03")))
    assert await standing(storage) == (1, 2)


async def test_law08_an_unblocked_job_has_its_old_position(storage: Storage, clock: HandClock) -> None:
    """Before all jobs that were enqueued later, whether they have limits or not."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("z y", limits=(("one", 1),)))
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["y"]
    await storage.enqueue(jobs("a"))
    await run_out(storage, "y")
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law08_blocked_jobs_are_unblocked_by_priority(storage: Storage) -> None:
    """The blocked job with the highest priority first."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),), priority=9), *jobs("b c", limits=(("one", 1),))])
    await storage.enqueue([job("d", limits=(("one", 1),), priority=3)])
    assert await claim_ids(storage, 9) == ["a"]
    for id in ("d", "b", "c"):
        await run_out(storage, *[record.job.id for record in (await storage.find(Query(state=(RUNNING,)))).records])
        assert await claim_ids(storage, 9) == [id]


async def test_law08_an_unblocked_job_in_a_paused_queue_holds_no_other_queue(storage: Storage) -> None:
    """Of two queues that share a limit, one is paused after its job has returned: the job of the other gets the
    slot."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue(
        [job(id, queue=queue, limits=(("api", 1),)) for id, queue in (("a", "x"), ("b", "x"), ("d", "y"))]
    )
    assert await claim_ids(storage, 9, "x", "y") == ["a"]
    await storage.set_limits([Limit("queue:x", slots=0)])
    await settle(storage, done(await row(storage, "a")))
    assert await claim_ids(storage, 9, "x", "y") == ["d"]
    await storage.set_limits([Limit("queue:x")])
    await settle(storage, done(await row(storage, "d")))
    assert await claim_ids(storage, 9, "x", "y") == ["b"]


@shows("the slot of an unblocked job that is cancelled goes to the next blocked job")
async def test_law08_the_slot_of_a_cancelled_unblocked_job_is_taken_by_the_next(storage: Storage) -> None:
    """The slot it returned for goes to the next blocked job."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs(names(0, 4), limits=(("one", 1),)))
    await claim_ids(storage, 1)
    await claim_ids(storage, 9)
    await run_out(storage, "j00")
    assert await standing(storage) == (1, 2)
    await settle(storage, cancelled(await row(storage, "j01")))
    assert await claim_ids(storage, 9) == ["j02"]


async def test_law08_the_slot_of_an_unblocked_job_that_leaves_the_queue_is_taken(
    storage: Storage, clock: HandClock
) -> None:
    """When it has expired, was superseded, delayed or made to wait, the next job is admitted."""
    await storage.set_limits([Limit("one", slots=1)])
    one = (("one", 1),)
    await storage.enqueue([job("j0", limits=one, priority=9), job("p", task="")])
    await storage.enqueue(
        [job("j1", limits=one, deadline=10), job("j2", limits=one, key="k"), *jobs("j3 j4 j5", limits=one)]
    )
    assert await claim_ids(storage, 9) == ["j0"]
    await run_out(storage, "j0")
    clock.advance(10)
    await advance_due(storage)
    assert (await row(storage, "j1")).reason == "expired"
    assert (await standing(storage))[0] == 1
    await storage.enqueue([job("new", key="k", key_conflict="replace", delay=99)])
    assert (await standing(storage))[0] == 1
    await settle(storage, back(await row(storage, "j3"), 99))
    assert (await standing(storage))[0] == 1
    await settle(storage, out(await row(storage, "j4"), WAITING, after=("p",)))
    assert await claim_ids(storage, 9) == ["j5"]


async def test_law08_an_unblocked_job_may_be_blocked_by_another_limit(storage: Storage) -> None:
    """It is now blocked on the other limit, and the slot it returned for goes to the next job."""
    await storage.set_limits([Limit("x", slots=1), Limit("y", slots=1)])
    await storage.enqueue([job("a", limits=(("x", 1),), priority=9), job("b", limits=(("y", 1),), priority=9)])
    await storage.enqueue([job("both", limits=(("x", 1), ("y", 1)), priority=1), job("c", limits=(("x", 1),))])
    assert await claim_ids(storage, 9) == ["a", "b"]
    assert (await row(storage, "both")).blocked_on == "x"
    await run_out(storage, "a")
    while not (taken := await claim_ids(storage, 9)):
        assert (await row(storage, "both")).blocked_on == "y"
        assert await standing(storage) == (1, 1)
    assert taken == ["c"]
    await run_out(storage, "b", "c")
    assert await claim_ids(storage, 9) == ["both"]


async def test_law08_a_cancelled_blocked_job_causes_no_next_time(storage: Storage, clock: HandClock) -> None:
    """A claim reports no next time for a rate for which no job is blocked."""
    await storage.set_limits([Limit("api", rate=1, per=60)])
    await storage.enqueue(jobs("a b", limits=(("api", 1),)))
    assert await claim_ids(storage, 9, lease=9000) == ["a"]
    await run_out(storage, "a")
    await settle(storage, cancelled(await row(storage, "b")))
    clock.advance(100)
    for _ in range(2):
        answer = await claimed(storage, 9)
        assert (answer.records, answer.next_in) == ((), None)


@shows("a limit with one slot admits two thousand blocked jobs one at a time, in order")
async def test_law08_two_thousand_blocked_jobs_run_in_order(storage: Storage) -> None:
    """Of two thousand jobs that one slot blocks, each runs in turn, whichever endings come between."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job(f"j{n:04}", limits=(("one", 1),)) for n in range(2_000)])
    for n in range(30):
        [record] = await claim(storage, 9)
        assert record.job.id == f"j{n:04}"
        await settle(storage, done(record))
