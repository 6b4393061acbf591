"""Lanes: tenants take turns, however many jobs one of them sends. Part of law 2."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import back, claim_ids, claim_one, done, job, jobs, row, settle, tend


async def test_law02_lanes_take_turns(storage: Storage, clock: HandClock) -> None:
    """A lane that sends much stands a stride apart; one that sends little comes in between."""
    await storage.enqueue(jobs("a0 a1 a2 a3 a4", lane="a"))
    clock.advance(0.5)
    await storage.enqueue(jobs("b0 b1", lane="b"))
    assert await claim_ids(storage, 9) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


async def test_law02_a_lane_stands_a_stride_behind_its_last(storage: Storage, clock: HandClock) -> None:
    """The place is the last one's plus stride, not the moment."""
    [a, b, c] = await storage.enqueue(jobs("a b c", lane="x", stride=0.25))
    assert [each.place for each in (a, b, c)] == [clock(), clock() + 0.25, clock() + 0.5]
    assert [each.joined_at for each in (a, b, c)] == [clock(), clock() + 0.25, clock() + 0.5]


async def test_law02_an_empty_lane_joins_at_the_head(storage: Storage, clock: HandClock) -> None:
    """Whoever has nothing in line need not wait behind the backlog of others."""
    await storage.enqueue(jobs("m0 m1 m2", lane="m"))
    clock.advance(100)
    await storage.enqueue([job("s0", lane="s")])
    assert (await row(storage, "s0")).place == clock() - 100
    assert await claim_ids(storage, 2) == ["m0", "s0"]


async def test_law02_an_empty_line_is_joined_at_its_moment(storage: Storage, clock: HandClock) -> None:
    """With nobody in line the place is the moment, as for anybody."""
    await storage.enqueue([job("a", lane="x")])
    await settle(storage, done(await claim_one(storage)))
    clock.advance(50)
    await storage.enqueue([job("b", lane="x")])
    assert (await row(storage, "b")).place == clock()


async def test_law02_weights_share_the_line(storage: Storage) -> None:
    """A lane of half the stride gets twice the turns."""
    await storage.enqueue([job(f"a{n:02}", lane="a", stride=0.5) for n in range(20)])
    await storage.enqueue([job(f"b{n:02}", lane="b", stride=1.0) for n in range(20)])
    taken = await claim_ids(storage, 12)
    assert sum(id.startswith("a") for id in taken) == 8
    assert sum(id.startswith("b") for id in taken) == 4


async def test_law02_lanes_belong_to_queue_and_priority(storage: Storage, clock: HandClock) -> None:
    """The same lane in another queue, or of another priority, is another lane."""
    await storage.enqueue(jobs("a0 a1", lane="x"))
    rows = await storage.enqueue([job("b", lane="x", queue="other"), job("c", lane="x", priority=5)])
    assert [each.place for each in rows] == [clock(), clock()]
    assert await claim_ids(storage, 9) == ["c", "a0", "a1"]


async def test_law02_jobs_without_a_lane_stand_by_their_moment(storage: Storage, clock: HandClock) -> None:
    """Lanes do not hold up those who have none."""
    await storage.enqueue(jobs("a0 a1 a2", lane="a", stride=10.0))
    clock.advance(5)
    await storage.enqueue([job("free")])
    assert await claim_ids(storage, 9) == ["a0", "free", "a1", "a2"]


async def test_law02_a_lane_remembers_those_in_line_only(storage: Storage, clock: HandClock) -> None:
    """Once its jobs are claimed a lane is empty, and joins at the head again."""
    await storage.enqueue(jobs("a0 a1", lane="a"))
    await storage.enqueue([job("m0", lane="m")])
    clock.advance(0.5)
    assert await claim_ids(storage, 3) == ["a0", "m0", "a1"]
    clock.advance(5)
    await storage.enqueue([job("n0", lane="n")])
    clock.advance(5)
    await storage.enqueue([job("a2", lane="a")])
    assert (await row(storage, "a2")).place == (await row(storage, "n0")).place


async def test_law02_in_a_lane_a_job_handed_back_keeps_its_turn(storage: Storage) -> None:
    """It returns to its own place, not behind the last of its lane."""
    await storage.enqueue(jobs("a0 a1 a2", lane="a"))
    first = await claim_one(storage)
    await settle(storage, back(first))
    assert await claim_ids(storage, 9) == ["a0", "a1", "a2"]


async def test_law02_a_delayed_job_takes_its_lanes_turn_when_due(storage: Storage, clock: HandClock) -> None:
    """Joining means joining: the lane is looked at when the moment has come, not when the job was sent."""
    await storage.enqueue([job("later", lane="a", delay=10)])
    clock.advance(5)
    await storage.enqueue(jobs("a0 a1", lane="a", stride=30.0))
    clock.advance(5)
    await tend(storage)
    assert (await row(storage, "later")).place == clock() - 5 + 30 + 1
    assert await claim_ids(storage, 9) == ["a0", "a1", "later"]


async def test_law02_what_came_due_first_is_in_line_first(storage: Storage, clock: HandClock) -> None:
    """A lost lease and a scheduled job of a lane, found due by the same call: the lane goes to the head of the line as
    it stood when its job came due."""
    await storage.enqueue([job("lost"), job("later", lane="a", delay=20)])
    await claim_one(storage, lease=5)
    clock.advance(30)
    await tend(storage)
    lost, later = await row(storage, "lost"), await row(storage, "later")
    assert (lost.lost, later.place) == (1, lost.place)


async def test_law02_who_was_waiting_stands_before_what_the_ending_brings(storage: Storage, clock: HandClock) -> None:
    """An ending lets those who waited for it into line, then stores what it was born with: in a lane that counts."""
    await storage.enqueue([job("up"), job("down", lane="a", after=("up",))])
    clock.advance(5)
    first = await claim_one(storage)
    await settle(storage, replace(done(first), then=(job("born", lane="a", stride=3.0),)))
    assert [(await row(storage, id)).place for id in ("down", "born")] == [clock(), clock() + 3]
    assert await claim_ids(storage, 9) == ["down", "born"]
