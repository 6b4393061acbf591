"""Queue order: which job is claimed next, by which worker, and when. Laws 2 and 12."""

from __future__ import annotations

import pytest

from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    READY,
    RUNNING,
    WAITING,
    advance_due,
    back,
    cancelled,
    claim_ids,
    claim_one,
    claimed,
    done,
    ids,
    job,
    jobs,
    row,
    settle,
    state,
)
from treadle_testkit.shows import shows


@shows("jobs of one priority are claimed in the order in which they joined the queue")
async def test_law02_jobs_are_claimed_in_the_order_of_their_enqueue(storage: Storage, clock: HandClock) -> None:
    """Within a priority the queue position decides, which is the time of joining the queue."""
    await storage.enqueue([job("z")])
    clock.advance(1)
    await storage.enqueue([job("a")])
    assert await claim_ids(storage, 9) == ["z", "a"]


@shows("jobs that joined at the same moment are claimed in the order of their ids")
async def test_law02_jobs_of_one_time_are_claimed_by_id(storage: Storage) -> None:
    """The sort key is (priority, queue position, id)."""
    await storage.enqueue(jobs("b c a"))
    assert await claim_ids(storage, 9) == ["a", "b", "c"]


@shows("a job of higher priority is claimed first")
async def test_law02_higher_priority_first(storage: Storage, clock: HandClock) -> None:
    """Priority comes before queue position, and may be negative."""
    await storage.enqueue([job("low", priority=-3), job("first")])
    clock.advance(5)
    await storage.enqueue([job("second"), job("high", priority=7)])
    assert await claim_ids(storage, 9) == ["high", "first", "second", "low"]


async def test_law02_a_claim_takes_no_more_than_its_limit(storage: Storage) -> None:
    """A claim takes at most `limit` jobs, the first queued ones."""
    await storage.enqueue(jobs("a b c d"))
    assert await claim_ids(storage, 3) == ["a", "b", "c"]
    assert await claim_ids(storage, 3) == ["d"]


@shows("a claim takes the share of each queue first and then fills up in their order")
async def test_law02_a_claim_takes_the_share_of_each_queue_first(storage: Storage, clock: HandClock) -> None:
    """Each queue's share in the order of the claim, then the rest in that order; priority counts within a queue
    only."""
    await storage.enqueue(jobs("b1 b2 b3", queue="b", priority=9))
    await storage.enqueue(jobs("a1 a2 a3", queue="a"))
    taken = await claim_ids(storage, 4, queues=(("a", 1), ("b", 2)))
    assert taken == ["a1", "b1", "b2", "a2"]


async def test_law02_an_unused_share_goes_to_the_other_queues(storage: Storage) -> None:
    """The other queues get a share that is not used up."""
    await storage.enqueue([*jobs("a1", queue="a"), *jobs("b1 b2 b3", queue="b")])
    assert await claim_ids(storage, 4, queues=(("a", 3), ("b", 1))) == ["a1", "b1", "b2", "b3"]


async def test_law02_shares_end_at_the_limit(storage: Storage) -> None:
    """Shares that add up to more than the limit do not raise it."""
    await storage.enqueue([*jobs("a1 a2 a3", queue="a"), *jobs("b1 b2", queue="b")])
    assert await claim_ids(storage, 3, queues=(("a", 2), ("b", 2))) == ["a1", "a2", "b1"]


async def test_law02_a_claim_takes_jobs_of_its_queues_only(storage: Storage) -> None:
    """A claim returns no jobs of other queues."""
    await storage.enqueue([job("a", queue="mail")])
    assert await claim_ids(storage, 9, "default") == []
    assert await claim_ids(storage, 9, "mail") == ["a"]


async def test_law02_a_claim_takes_jobs_of_its_tasks_only(storage: Storage) -> None:
    """A job of a task that the worker does not name stays queued, and blocks no other job."""
    await storage.enqueue([job("a", task="new"), job("b", task="old")])
    assert await claim_ids(storage, 9, tasks={"old": (None, None)}) == ["b"]
    assert await claim_ids(storage, 9, tasks={}) == []
    assert await claim_ids(storage, 9, tasks=None) == ["a"]


@shows("a claim takes no more jobs of a task than the worker has room for")
async def test_law02_a_claim_takes_no_more_of_a_task_than_there_is_room_for(storage: Storage) -> None:
    """At most `room` jobs of a task in one claim; None is no limit, 0 is none."""
    await storage.enqueue([*jobs("a b c", task="x"), *jobs("d e f", task="y"), *jobs("g", task="z")])
    assert await claim_ids(storage, 9, tasks={"x": (2, None), "y": (None, None), "z": (0, None)}) == [*"abdef"]


async def test_law02_room_spans_queues(storage: Storage) -> None:
    """Room counts over all queues of the claim, for the shares and the rest."""
    await storage.enqueue([*jobs("a1 a2", queue="a"), *jobs("b1 b2", queue="b")])
    assert await claim_ids(storage, 9, queues=(("a", 1), ("b", 1)), tasks={"t": (3, None)}) == ["a1", "b1", "a2"]


async def test_law02_a_claim_by_id_takes_these_jobs_only(storage: Storage) -> None:
    """A claim by ids takes those jobs wherever they are queued, in queue order."""
    await storage.enqueue(jobs("a b c d"))
    assert await claim_ids(storage, 9, ids=("d", "b", "none")) == ["b", "d"]
    assert await claim_ids(storage, 9) == ["a", "c"]


async def test_law02_a_claim_by_id_takes_jobs_of_any_queue(storage: Storage) -> None:
    """With ids the queues of the claim do not matter."""
    await storage.enqueue([job("a", queue="somewhere")])
    assert await claim_ids(storage, 1, "default", ids=("a",)) == ["a"]


async def test_law02_a_claim_by_id_takes_queued_jobs_only(storage: Storage) -> None:
    """A claim by ids does not make a job due."""
    await storage.enqueue([job("late", delay=5), job("blocked", after=("late",)), job("p", task="")])
    assert await claim_ids(storage, 9, ids=("late", "blocked", "p")) == []


@shows("a job that one worker has claimed is in no claim of another")
async def test_law02_a_claimed_job_is_in_no_other_claim(storage: Storage) -> None:
    """A job is queued at most once; a claimed job belongs to one worker."""
    await storage.enqueue(jobs("a"))
    assert await claim_ids(storage, 9, worker="one") == ["a"]
    assert await claim_ids(storage, 9, worker="two") == []


@shows("the row of a claimed job names its worker and the end of its lease")
async def test_law02_a_claimed_job_names_its_worker(storage: Storage, clock: HandClock) -> None:
    """The record shows its worker, the end of its lease, and that it is not queued."""
    await storage.enqueue(jobs("a"))
    clock.advance(3)
    a = await claim_one(storage, worker="w", lease=20.0)
    assert a.state is RUNNING
    assert a.worker is not None
    assert a.worker.startswith("w#")
    assert (a.queue_position, a.started_at, a.due_at) == (None, clock(), clock() + 20)
    assert a == await row(storage, "a")


@shows("a delayed job joins the queue when it is due")
async def test_law02_a_delayed_job_is_queued_when_it_is_due(storage: Storage, clock: HandClock) -> None:
    """It is due exactly at its time, and not a second earlier."""
    await storage.enqueue([job("a", delay=10, priority=9), job("b")])
    a = await row(storage, "a")
    assert (a.state, a.queue_position, a.due_at) == (READY, None, clock() + 10)
    clock.advance(9)
    assert await claim_ids(storage, 9) == ["b"]
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law02_the_position_of_a_delayed_job_is_its_due_time(storage: Storage, clock: HandClock) -> None:
    """Its queue position is the time when it was due, however late a call advances it."""
    await storage.enqueue([job("z", delay=10)])
    clock.advance(11)
    await storage.enqueue([job("a")])
    clock.advance(11)
    await advance_due(storage)
    assert (await row(storage, "z")).return_position == clock() - 12
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law02_delayed_jobs_are_claimed_in_due_order(storage: Storage, clock: HandClock) -> None:
    """In whichever order they were enqueued, and even if all become due in one call."""
    await storage.enqueue([job("a", delay=30), job("b", delay=20), job("c", delay=10), job("d", delay=20)])
    clock.advance(60)
    assert await claim_ids(storage, 9) == ["c", "b", "d", "a"]


@shows("a job that is due at once joins the queue behind earlier jobs")
async def test_law02_a_past_start_time_counts_as_now(storage: Storage, clock: HandClock) -> None:
    """A past start time gives no earlier queue position."""
    await storage.enqueue([job("z")])
    await storage.enqueue([job("a", delay=0.0)])
    clock.advance(1)
    await storage.enqueue([job("b", delay=0.0)])
    assert await claim_ids(storage, 9) == ["a", "z", "b"]


async def test_law02_a_delay_of_a_century_is_stored(storage: Storage, clock: HandClock) -> None:
    """Delays may be of any length."""
    century = 100 * 365 * 86_400.0
    await storage.enqueue([job("a", delay=century)])
    clock.advance(century - 1)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]


@shows("a claim returns the seconds until the next job may be due")
async def test_law02_a_claim_returns_the_time_to_the_next_due_job(storage: Storage, clock: HandClock) -> None:
    """A claim returns in how many seconds the next job may be due; None if there is none."""
    assert (await claimed(storage, 9)).next_in is None
    await storage.enqueue([job("a", delay=40), job("b", delay=25)])
    assert (await claimed(storage, 9)).next_in == pytest.approx(25)
    clock.advance(10)
    assert (await claimed(storage, 9)).next_in == pytest.approx(15)
    clock.advance(15)
    answer = await claimed(storage, 9, lease=600.0)
    assert ids(answer.records) == ["b"]
    assert answer.next_in == pytest.approx(15)


async def test_law02_a_claim_returns_the_time_to_the_end_of_the_next_lease(storage: Storage) -> None:
    """So that an idle worker claims again when another worker's lease may have expired."""
    await storage.enqueue(jobs("a"))
    assert (await claimed(storage, 1, lease=45.0)).next_in == pytest.approx(45)


async def test_law02_a_released_job_keeps_its_position(storage: Storage, clock: HandClock) -> None:
    """An outcome READY with delay 0 returns it to its position, not behind jobs enqueued since."""
    await storage.enqueue([job("z")])
    clock.advance(1)
    await storage.enqueue([job("a")])
    z = await claim_one(storage)
    clock.advance(1)
    await settle(storage, back(z))
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law02_a_retried_job_is_queued_behind_earlier_ones(storage: Storage, clock: HandClock) -> None:
    """An outcome READY with a delay queues it, once due, behind jobs that were queued before that time."""
    await storage.enqueue([job("z")])
    z = await claim_one(storage)
    await settle(storage, back(z, 5, attempt=1))
    assert await claim_ids(storage, 9) == []
    clock.advance(4)
    await storage.enqueue([job("a")])
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["a", "z"]


@shows("a job whose upstreams have ended joins the queue behind the jobs that are there")
async def test_law02_an_unblocked_job_joins_when_unblocked(storage: Storage, clock: HandClock) -> None:
    """A waiting job has no queue position: it is queued behind those that were ready before."""
    await storage.enqueue([job("up"), job("a", after=("up",))])
    up = await claim_one(storage)
    clock.advance(1)
    await storage.enqueue([job("z")])
    clock.advance(1)
    await settle(storage, done(up))
    assert await claim_ids(storage, 9) == ["z", "a"]


@shows("a job whose upstreams end early still waits for its delay")
async def test_law02_early_unblocking_does_not_shorten_a_delay(storage: Storage, clock: HandClock) -> None:
    """The delay counts from the enqueue: a job unblocked earlier still waits until it is due."""
    await storage.enqueue([job("up"), job("a", after=("up",), delay=20)])
    clock.advance(5)
    await settle(storage, done(await claim_one(storage)))
    assert await state(storage, "a") is READY
    clock.advance(14)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]


async def test_law02_late_unblocking_does_not_add_a_delay(storage: Storage, clock: HandClock) -> None:
    """A job unblocked after its due time is queued at once."""
    await storage.enqueue([job("up"), job("a", after=("up",), delay=20)])
    clock.advance(25)
    await settle(storage, done(await claim_one(storage)))
    assert await claim_ids(storage) == ["a"]


@shows("`run_now` puts a delayed job behind the jobs that are queued at that moment")
async def test_law02_run_now_queues_a_delayed_job(storage: Storage, clock: HandClock) -> None:
    """A settle from outside queues a delayed job now."""
    await storage.enqueue([job("a", delay=1000)])
    clock.advance(1)
    await storage.enqueue([job("b")])
    clock.advance(1)
    await settle(storage, back(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b", "a"]


async def test_law02_a_settle_from_outside_delays_a_queued_job(storage: Storage, clock: HandClock) -> None:
    """A settle from outside can also delay a queued job."""
    await storage.enqueue([job("a")])
    await settle(storage, back(await row(storage, "a"), 50))
    assert await claim_ids(storage) == []
    clock.advance(50)
    assert await claim_ids(storage) == ["a"]


@shows("a claim never returns a job that the worker still runs")
async def test_law02_a_claim_takes_no_job_that_its_worker_still_runs(storage: Storage, clock: HandClock) -> None:
    """A worker does not get a job that it still runs, but others in the same claim."""
    await storage.enqueue(jobs("a b"))
    assert await claim_ids(storage, 1, lease=10) == ["a"]
    clock.advance(11)
    assert await claim_ids(storage, 9, running=("a",)) == ["b"]
    assert await claim_ids(storage, 9, worker="other") == ["a"]


async def test_law02_a_step_of_priority_is_worth_its_seconds_of_ageing(storage: Storage, clock: HandClock) -> None:
    """With aging, a step of priority is worth that many seconds of waiting and no more."""
    await storage.enqueue([job("old", aging=10.0)])
    clock.advance(9)
    await storage.enqueue([job("high", priority=1, aging=10.0)])
    assert await claim_ids(storage, 9) == ["high", "old"]


@shows("a job with `aging` that waited long enough is claimed before one of higher priority")
async def test_law02_a_job_that_aged_long_enough_is_claimed_first(storage: Storage, clock: HandClock) -> None:
    """After that many seconds the job of lower priority is in front."""
    await storage.enqueue([job("old", aging=10.0)])
    clock.advance(21)
    await storage.enqueue([job("high", priority=2, aging=10.0)])
    assert await claim_ids(storage, 9) == ["old", "high"]


async def test_law02_ageing_jobs_sort_as_priority_zero(storage: Storage) -> None:
    """Jobs with aging sort among those of priority 0, whatever their own priority is."""
    await storage.enqueue([job("a", priority=9, aging=10.0), job("b", priority=1), job("c", priority=-1)])
    await storage.enqueue([job("d", priority=-9, aging=10.0)])
    assert await claim_ids(storage, 9) == ["b", "a", "d", "c"]


@shows("a queued job that is cancelled leaves its queue")
async def test_law02_cancelled_jobs_leave_the_queue(storage: Storage) -> None:
    """A queued job that is settled from outside leaves the queue."""
    await storage.enqueue(jobs("a b"))
    await settle(storage, cancelled(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b"]
    assert (await row(storage, "a")).state is CANCELLED


async def test_law02_waiting_jobs_are_not_queued(storage: Storage) -> None:
    """Jobs that wait for others are not queued, and promises are not either."""
    await storage.enqueue([job("p", task=""), job("a", after=("p",))])
    assert await claim_ids(storage, 9) == []
    assert (await row(storage, "p")).state is WAITING


@shows("the times in a row come from the clock of the storage", area="Storages")
async def test_law12_stored_times_come_from_the_storages_clock(storage: Storage, clock: HandClock) -> None:
    """All stored times come from the storage's clock."""
    begun = clock()
    [a] = await storage.enqueue([job("a", deadline=500)])
    assert (a.created_at, a.queue_position, a.return_position, a.deadline_at) == (begun, begun, begun, begun + 500)
    clock.advance(10)
    a = await claim_one(storage)
    assert (a.created_at, a.started_at, a.updated_at) == (begun, begun + 10, begun + 10)
    clock.advance(10)
    await settle(storage, done(a, keep=100))
    a = await row(storage, "a")
    assert (a.started_at, a.ended_at, a.updated_at, a.expires_at) == (begun + 10, begun + 20, begun + 20, begun + 120)


async def test_law12_a_clock_that_steps_back_loses_nothing(storage: Storage, clock: HandClock) -> None:
    """Jobs enqueued after the step come first, and all of them run."""
    await storage.enqueue([job("before")])
    clock.advance(-100)
    await storage.enqueue([job("after")])
    assert await claim_ids(storage, 9) == ["after", "before"]


async def test_law12_a_lease_expires_after_its_due_time(storage: Storage, clock: HandClock) -> None:
    """A lease has expired when now > due_at, and not before."""
    await storage.enqueue(jobs("a"))
    await claim_one(storage, lease=10)
    clock.advance(10)
    assert await claim_ids(storage) == []
    assert await state(storage, "a") is RUNNING
    clock.advance(0.001)
    assert await claim_ids(storage) == ["a"]
