"""Lanes: tenants take turns, however many jobs one of them enqueues. Part of law 2."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import advance_due, back, claim_ids, claim_one, done, job, jobs, row, settle
from treadle_testkit.shows import shows


@shows("a lane with few jobs takes its turns among the jobs of a full lane")
async def test_law02_lanes_take_turns(storage: Storage, clock: HandClock) -> None:
    """Jobs of a large lane are a stride apart; jobs of a small lane come in between."""
    await storage.enqueue(jobs("a0 a1 a2 a3 a4", lane="a"))
    clock.advance(0.5)
    await storage.enqueue(jobs("b0 b1", lane="b"))
    assert await claim_ids(storage, 9) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


async def test_law02_a_job_is_placed_one_stride_behind_the_last_of_its_lane(storage: Storage, clock: HandClock) -> None:
    """Its position is the position of the lane's last job plus the stride, not the current time."""
    [a, b, c] = await storage.enqueue(jobs("a b c", lane="x", stride=0.25))
    assert [record.queue_position for record in (a, b, c)] == [clock(), clock() + 0.25, clock() + 0.5]
    assert [record.return_position for record in (a, b, c)] == [clock(), clock() + 0.25, clock() + 0.5]


async def test_law02_an_empty_lane_joins_at_the_head(storage: Storage, clock: HandClock) -> None:
    """A lane without queued jobs does not wait behind the backlog of other lanes."""
    await storage.enqueue(jobs("m0 m1 m2", lane="m"))
    clock.advance(100)
    await storage.enqueue([job("s0", lane="s")])
    assert (await row(storage, "s0")).queue_position == clock() - 100
    assert await claim_ids(storage, 2) == ["m0", "s0"]


async def test_law02_an_empty_queue_is_joined_at_the_current_time(storage: Storage, clock: HandClock) -> None:
    """In an empty queue the position is the current time, as for any job."""
    await storage.enqueue([job("a", lane="x")])
    await settle(storage, done(await claim_one(storage)))
    clock.advance(50)
    await storage.enqueue([job("b", lane="x")])
    assert (await row(storage, "b")).queue_position == clock()


@shows("a lane with half the stride gets twice the turns")
async def test_law02_lanes_share_the_queue_by_weight(storage: Storage) -> None:
    """A lane with half the stride gets twice the turns."""
    await storage.enqueue([job(f"a{n:02}", lane="a", stride=0.5) for n in range(20)])
    await storage.enqueue([job(f"b{n:02}", lane="b", stride=1.0) for n in range(20)])
    taken = await claim_ids(storage, 12)
    assert sum(id.startswith("a") for id in taken) == 8
    assert sum(id.startswith("b") for id in taken) == 4


async def test_law02_lanes_belong_to_queue_and_priority(storage: Storage, clock: HandClock) -> None:
    """The same lane name in another queue, or with another priority, is another lane."""
    await storage.enqueue(jobs("a0 a1", lane="x"))
    rows = await storage.enqueue([job("b", lane="x", queue="other"), job("c", lane="x", priority=5)])
    assert [record.queue_position for record in rows] == [clock(), clock()]
    assert await claim_ids(storage, 9) == ["c", "a0", "a1"]


async def test_law02_jobs_without_a_lane_are_queued_by_their_time(storage: Storage, clock: HandClock) -> None:
    """Lanes do not delay jobs without a lane."""
    await storage.enqueue(jobs("a0 a1 a2", lane="a", stride=10.0))
    clock.advance(5)
    await storage.enqueue([job("free")])
    assert await claim_ids(storage, 9) == ["a0", "free", "a1", "a2"]


async def test_law02_a_lane_counts_its_queued_jobs_only(storage: Storage, clock: HandClock) -> None:
    """Once its jobs are claimed, a lane is empty, and its next job joins at the head again."""
    await storage.enqueue(jobs("a0 a1", lane="a"))
    await storage.enqueue([job("m0", lane="m")])
    clock.advance(0.5)
    assert await claim_ids(storage, 3) == ["a0", "m0", "a1"]
    clock.advance(5)
    await storage.enqueue([job("n0", lane="n")])
    clock.advance(5)
    await storage.enqueue([job("a2", lane="a")])
    assert (await row(storage, "a2")).queue_position == (await row(storage, "n0")).queue_position


async def test_law02_a_released_job_keeps_its_position_in_its_lane(storage: Storage) -> None:
    """It returns to its own position, not behind the last job of its lane."""
    await storage.enqueue(jobs("a0 a1 a2", lane="a"))
    first = await claim_one(storage)
    await settle(storage, back(first))
    assert await claim_ids(storage, 9) == ["a0", "a1", "a2"]


async def test_law02_a_delayed_job_takes_its_lanes_turn_when_due(storage: Storage, clock: HandClock) -> None:
    """The lane's state when the job becomes due determines its position, not that when the job was enqueued."""
    await storage.enqueue([job("later", lane="a", delay=10)])
    clock.advance(5)
    await storage.enqueue(jobs("a0 a1", lane="a", stride=30.0))
    clock.advance(5)
    await advance_due(storage)
    assert (await row(storage, "later")).queue_position == clock() - 5 + 30 + 1
    assert await claim_ids(storage, 9) == ["a0", "a1", "later"]


async def test_law02_the_job_that_became_due_first_is_queued_first(storage: Storage, clock: HandClock) -> None:
    """One call advances a lost lease and a delayed job of a lane: the lane joins at the head of the queue as it was
    when its job became due."""
    await storage.enqueue([job("lost"), job("later", lane="a", delay=20)])
    await claim_one(storage, lease=5)
    clock.advance(30)
    await advance_due(storage)
    lost, later = await row(storage, "lost"), await row(storage, "later")
    assert (lost.lost, later.queue_position) == (1, lost.queue_position)


async def test_law02_unblocked_jobs_are_queued_before_followup_jobs(storage: Storage, clock: HandClock) -> None:
    """An ending queues the jobs that waited for it before it stores its follow-up jobs. Jobs in a lane show this
    order."""
    await storage.enqueue([job("up"), job("down", lane="a", after=("up",))])
    clock.advance(5)
    first = await claim_one(storage)
    await settle(storage, replace(done(first), followups=(job("born", lane="a", stride=3.0),)))
    assert [(await row(storage, id)).queue_position for id in ("down", "born")] == [clock(), clock() + 3]
    assert await claim_ids(storage, 9) == ["down", "born"]
