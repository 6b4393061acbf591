"""Leases and deadlines: who may settle a job, and until when. Law 4."""

from __future__ import annotations

import pytest

from treadle.core.limit_model import Limit
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
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    job,
    jobs,
    out,
    renewal,
    row,
    run,
    said,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

# --- leases


@shows("a job whose lease expired is queued again at its old position, and the loss is counted")
async def test_law04_a_lost_lease_returns_the_job_and_counts(storage: Storage, clock: HandClock) -> None:
    """It is queued again with lost + 1, and keeps its version and worker until the next claim."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(11)
    await advance_due(storage)
    lost = await row(storage, "a")
    assert (lost.state, lost.lost, lost.version, lost.worker) == (READY, 1, a.version, a.worker)
    assert lost.queue_position == a.return_position
    again = await claim_one(storage)
    assert again.version > a.version
    assert (again.lost, again.attempt, again.worker) == (1, 0, again.worker)
    assert again.worker != a.worker


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
async def test_law04_a_lost_job_names_the_worker_that_held_it(
    storage: Storage, clock: HandClock, limited: bool
) -> None:
    """Until it is settled, so that the next claim shows which worker lost it."""
    await storage.enqueue([job("a", limits=(("gate", 1),) if limited else ())])
    await claim(storage, worker="one#two", lease=10)
    clock.advance(11)
    await advance_due(storage)
    record = await row(storage, "a")
    assert (record.state, record.reason) == (READY, "lost by one#two")
    assert (record.worker or "").startswith("one#two#")
    [record] = await claim(storage, worker="other", lease=10)
    assert (record.lost, record.reason) == (1, "lost by one#two")
    clock.advance(11)
    [record] = await claim(storage, worker="third", lease=10)
    assert (record.lost, record.reason) == (2, "lost by other")
    await settle(storage, back(record))
    assert (await row(storage, "a")).reason is None


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
async def test_law04_a_claimed_job_keeps_the_reason_of_its_last_outcome(
    storage: Storage, clock: HandClock, limited: bool
) -> None:
    """Until it is settled or its lease expires, so that a run can read how the one before it ended."""
    await storage.enqueue([job("a", limits=(("gate", 1),) if limited else ())])
    await settle(storage, back(await claim_one(storage), 10, reason="asleep in sleep:nap"))
    clock.advance(10)
    a = await claim_one(storage, lease=10)
    assert (a.state, a.reason) == (RUNNING, "asleep in sleep:nap")
    await beat(storage, renewal(a), lease=10)
    assert (await row(storage, "a")).reason == "asleep in sleep:nap"
    clock.advance(11)
    assert (await claim_one(storage)).reason == "lost by w"


async def test_law04_a_lost_job_keeps_its_position(storage: Storage, clock: HandClock) -> None:
    """It is queued before all jobs that were enqueued after it."""
    await storage.enqueue(jobs("z"))
    await claim_one(storage, lease=10)
    clock.advance(5)
    await storage.enqueue(jobs("a"))
    clock.advance(6)
    assert await claim_ids(storage, 9) == ["z", "a"]


@shows("a worker may settle a job after its lease expired if no other worker has claimed it")
async def test_law04_a_late_outcome_still_counts(storage: Storage, clock: HandClock) -> None:
    """Until the next claim of the job its holder may settle it, even after the lease has expired."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2, lease=10)
    clock.advance(11)
    await settle(storage, done(a))
    await advance_due(storage)
    await settle(storage, done(b))
    assert await claim_ids(storage, 9) == []
    assert await states(storage, "a b") == [SUCCEEDED, SUCCEEDED]


@shows("a late heartbeat renews an expired lease if no other worker has claimed the job")
async def test_law04_a_late_heartbeat_renews_an_expired_lease(storage: Storage, clock: HandClock) -> None:
    """The job leaves the queue again, its checkpoints are stored, and no other worker gets it."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(11)
    await advance_due(storage)
    assert await beat(storage, renewal(a, checkpoints=(("s", "1"),)), lease=10) == set()
    taken_up = await row(storage, "a")
    assert (taken_up.state, taken_up.queue_position, taken_up.due_at) == (RUNNING, None, clock() + 10)
    assert (taken_up.checkpoints, taken_up.lost, taken_up.version) == ((("s", "1"),), 1, a.version)
    assert await claim_ids(storage) == []
    await settle(storage, done(a))


async def test_law04_a_heartbeat_renews_before_due_rows_are_advanced(storage: Storage, clock: HandClock) -> None:
    """The holder's heartbeat renews an expired lease that no call has advanced yet; the job does not count as lost."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(11)
    assert await beat(storage, renewal(a)) == set()
    assert ((await row(storage, "a")).lost, await state(storage, "a")) == (0, RUNNING)


async def test_law04_a_heartbeat_advances_due_rows(storage: Storage, clock: HandClock) -> None:
    """Any worker's heartbeat advances due rows: jobs that others lost are queued again."""
    await storage.enqueue(jobs("a"))
    await claim_one(storage, lease=10)
    clock.advance(11)
    await beat(storage, worker="other")
    assert await state(storage, "a") is READY


async def test_law04_a_late_heartbeat_does_not_take_a_slot_of_another_job(storage: Storage, clock: HandClock) -> None:
    """When another job runs in its slot, the job is lost: a slot never has two jobs."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("b", limits=(("one", 1),), queue="other")])
    a = await claim_one(storage, lease=10)
    assert await claim_ids(storage, 9, "other") == []
    clock.advance(11)
    assert await claim_ids(storage, 9, "other", lease=1000) == ["b"]
    assert await beat(storage, renewal(a)) == {"a"}
    assert await state(storage, "a") is READY


async def test_law04_a_heartbeat_lengthens_the_lease(storage: Storage, clock: HandClock) -> None:
    """The lease then ends the given seconds from now."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(8)
    assert await beat(storage, renewal(a), lease=10) == set()
    clock.advance(10)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]


async def test_law04_a_heartbeat_merges_checkpoints_and_replaces_the_note(storage: Storage) -> None:
    """Other checkpoints stay, and without a note the old note stays. A settle does the same."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await beat(storage, renewal(a, checkpoints=(("one", "1"), ("two", "2")), note="half"))
    await beat(storage, renewal(a, checkpoints=(("two", "22"), ("three", "3"))))
    a = await row(storage, "a")
    assert (dict(a.checkpoints), a.note) == ({"one": "1", "two": "22", "three": "3"}, "half")
    await settle(storage, back(a, checkpoints=(("four", "4"),)))
    a = await claim_one(storage)
    assert (dict(a.checkpoints), a.note) == ({"one": "1", "two": "22", "three": "3", "four": "4"}, "half")
    await settle(storage, done(a, checkpoints=(("one", "!"),), note=""))
    a = await row(storage, "a")
    assert (dict(a.checkpoints)["one"], a.note) == ("!", "")


async def test_law04_the_lease_of_a_job_takes_precedence(storage: Storage, clock: HandClock) -> None:
    """The job's lease takes precedence over the task's, and that one over the worker's, at claims. A renewal lasts as
    long as the heartbeat says, at most as long as the job's own lease."""
    await storage.enqueue([job("own", lease=100.0), job("task", task="slow"), job("plain")])
    own, plain, task = await claim(storage, 9, lease=10, tasks={"t": (None, None), "slow": (None, 50.0)})
    begun = clock()
    assert [record.due_at for record in (own, task, plain)] == [begun + 100, begun + 50, begun + 10]
    await beat(storage, renewal(own), lease=200)
    assert (await row(storage, "own")).due_at == begun + 100
    await beat(storage, renewal(own), renewal(plain), lease=20)
    assert (await row(storage, "own")).due_at == begun + 20
    assert (await row(storage, "plain")).due_at == begun + 20


async def test_law04_a_lease_ends_at_once_after_a_renewal_of_no_length(storage: Storage, clock: HandClock) -> None:
    """A supervisor does that for a process that has ended, with a checkpoint or without."""
    await storage.enqueue([job("a-own", lease=100.0), job("b-noted"), job("c-other")])
    own, noted, _ = await claim(storage, 9, lease=10)
    assert await beat(storage, renewal(own), renewal(noted, checkpoints=(("s", "1"),)), lease=0) == set()
    clock.advance(0.001)
    assert await claim_ids(storage, 9, worker="another") == ["a-own", "b-noted"]
    rows = [await row(storage, id) for id in ("a-own", "b-noted", "c-other")]
    assert [record.lost for record in rows] == [1, 1, 0]
    assert dict(rows[1].checkpoints) == {"s": "1"}


async def test_law04_a_job_may_be_lost_more_than_once(storage: Storage, clock: HandClock) -> None:
    """`lost` counts expired leases; the engine, not the storage, decides what follows."""
    await storage.enqueue(jobs("a"))
    for n in range(5):
        assert (await claim_one(storage, lease=10)).lost == n
        clock.advance(11)


@shows("a checkpoint of a heartbeat outlives the lease, and every later claim returns it with the count of lost leases")
async def test_law04_a_note_on_a_lease_outlives_it(storage: Storage, clock: HandClock) -> None:
    """Before a run, the engine stores a note for the case that the lease is lost. The note and `lost` are of the same
    row, after an expiry, after a claim that repeats it, and after a release."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2, lease=10)
    await beat(storage, renewal(a, checkpoints=(("treadle:lost", "1"),)), renewal(b), lease=10)
    clock.advance(11)
    a, b = sorted(await claim(storage, 2, lease=10), key=lambda found: found.job.id)
    assert (a.lost, dict(a.checkpoints)) == (1, {"treadle:lost": "1"})
    assert (b.lost, dict(b.checkpoints)) == (1, {})
    await settle(storage, back(a), back(b, checkpoints=(("treadle:lost", "2"),)))
    a, b = sorted(await claim(storage, 2, lease=10), key=lambda found: found.job.id)
    assert (a.lost, dict(a.checkpoints)) == (1, {"treadle:lost": "1"})
    assert (b.lost, dict(b.checkpoints)) == (1, {"treadle:lost": "2"})
    await beat(storage, renewal(a, checkpoints=(("treadle:lost", "3"),)), lease=10, worker="another")
    clock.advance(11)
    record = await claim_one(storage, lease=10)
    assert (record.job.id, record.lost, dict(record.checkpoints)) == ("a", 2, {"treadle:lost": "3"})


async def test_law04_a_release_counts_no_loss(storage: Storage) -> None:
    """Handing a job back does not change `lost` or `attempt`."""
    await storage.enqueue(jobs("a"))
    await settle(storage, back(await claim_one(storage)))
    a = await claim_one(storage)
    assert (a.lost, a.attempt) == (0, 0)


async def test_law04_an_outcome_after_a_release_from_outside_is_stale(storage: Storage) -> None:
    """A running job can be queued again by hand; the outcome of its holder is then stale."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await settle(storage, back(await row(storage, "a")))
    assert await said(storage, done(a)) == ["stale"]
    assert await claim_ids(storage) == ["a"]


# --- deadlines


async def test_law04_a_deadline_of_a_queued_job(storage: Storage, clock: HandClock) -> None:
    """A job that is not running at its deadline fails as expired, exactly then and not before."""
    await storage.enqueue([job("a", deadline=10)])
    clock.advance(9.5)
    await advance_due(storage)
    assert await state(storage, "a") is READY
    clock.advance(0.5)
    assert await claim_ids(storage) == []
    a = await row(storage, "a")
    assert (a.state, a.reason, a.ended_at, a.queue_position) == (FAILED, "expired", clock(), None)
    assert a.error


async def test_law04_a_job_whose_deadline_precedes_its_start_expires(storage: Storage, clock: HandClock) -> None:
    """A job with a delay beyond its deadline never starts."""
    await storage.enqueue([job("a", delay=20, deadline=10)])
    clock.advance(30)
    assert await claim_ids(storage) == []
    assert (await row(storage, "a")).reason == "expired"


async def test_law04_a_waiting_job_expires_at_its_deadline(storage: Storage, clock: HandClock) -> None:
    """For every kind of waiting, promises included."""
    await storage.enqueue([job("p", task="", deadline=20), job("a", after=("p",), deadline=10)])
    clock.advance(10)
    await advance_due(storage)
    assert await states(storage, "p a") == [WAITING, FAILED]
    clock.advance(10)
    await advance_due(storage)
    assert (await row(storage, "p")).reason == "expired"


async def test_law04_a_deadline_does_not_stop_a_running_job(storage: Storage, clock: HandClock) -> None:
    """The worker ends a job that runs too long; the storage leaves it alone while its lease lasts."""
    await storage.enqueue([job("a", deadline=10)])
    a = await claim_one(storage, lease=30)
    clock.advance(20)
    await advance_due(storage)
    assert await beat(storage, renewal(a)) == set()
    await settle(storage, done(a))


async def test_law04_a_deadline_of_a_lost_job(storage: Storage, clock: HandClock) -> None:
    """Once its lease and its deadline are over, the job is not run again."""
    await storage.enqueue([job("a", deadline=10)])
    await claim_one(storage, lease=20)
    clock.advance(21)
    assert await claim_ids(storage) == []
    assert (await row(storage, "a")).reason == "expired"


async def test_law04_a_deadline_of_a_retried_job(storage: Storage, clock: HandClock) -> None:
    """Retries end at the deadline too, and an expired job does not end a second time."""
    await storage.enqueue([job("a", deadline=10)])
    await settle(storage, back(await claim_one(storage), 60, attempt=1))
    clock.advance(10)
    await advance_due(storage)
    assert ((await row(storage, "a")).reason, (await row(storage, "a")).attempt) == ("expired", 1)
    clock.advance(60)
    assert await claim_ids(storage) == []


async def test_law04_a_deadline_of_a_blocked_job(storage: Storage, clock: HandClock) -> None:
    """A job blocked by a limit expires too, and is not queued when the limit opens."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([job("a", limits=(("shut", 1),), deadline=10)])
    assert await claim_ids(storage) == []
    clock.advance(10)
    await advance_due(storage)
    assert (await row(storage, "a")).reason == "expired"
    await storage.set_limits([Limit("shut")])
    assert await claim_ids(storage) == []


async def test_law04_a_deadline_does_not_end_a_job_that_ran(storage: Storage, clock: HandClock) -> None:
    """Its function has run; only the engine may decide how the job ends."""
    await storage.enqueue([job("a", deadline=10), job("child", delay=20)])
    a = await claim_one(storage)
    await settle(storage, out(a, WAITING, after=("child",), function_done=True))
    clock.advance(15)
    await advance_due(storage)
    assert await state(storage, "a") is WAITING
    clock.advance(5)
    await run(storage, "child")
    clock.advance(5)
    assert await claim_ids(storage) == ["a"]


async def test_law04_a_deadline_does_not_end_a_job_that_ran_and_was_lost(storage: Storage, clock: HandClock) -> None:
    """A worker was lost while it settled the job: the job is queued again in spite of its deadline."""
    await storage.enqueue([job("a", function_done=True, deadline=10)])
    await storage.enqueue([job("b", function_done=True, deadline=10, after=("x",), wait_timeout=50)])
    assert (await claim_one(storage, lease=20)).job.id == "a"
    clock.advance(21)
    a = await claim_one(storage)
    assert (a.job.id, a.lost, a.reason) == ("a", 1, "lost by w")
    await settle(storage, done(a))
    clock.advance(29)
    assert await claim_ids(storage) == ["b"]


async def test_law04_a_claim_returns_the_time_to_the_next_deadline(storage: Storage) -> None:
    """`next_in` of a claim counts the next deadline, so that the worker wakes in time."""
    await storage.enqueue([job("a", after=("a-promise",), wait_timeout=500, deadline=12)])
    assert (await claimed(storage)).next_in == pytest.approx(12)


async def test_law04_an_expiry_cancels_the_jobs_that_wait(storage: Storage, clock: HandClock) -> None:
    """Both happen in the same step, even if no worker serves either queue."""
    await storage.enqueue([job("a", deadline=10, queue="x"), job("b", after=("a",), queue="y")])
    clock.advance(10)
    await storage.prune(10)
    assert await states(storage, "a b") == [FAILED, CANCELLED]
