"""Queued jobs that this worker does not run, or has no room for, precede its own jobs. Law 2."""

from __future__ import annotations

import pytest

from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import back, cancelled, claim, claim_ids, done, ids, job, row, settle

MINE = {"mine": (None, None)}
MANY = 150  # more rows than a storage would skip again in every claim
MOST = 10_000  # jobs of one call


async def foreign(storage: Storage, count: int = MANY, **options: object) -> None:
    """Enqueue jobs that the claims of these laws do not match."""
    new = [job(f"f{n:05}", task="foreign", **options) for n in range(count)]
    for start in range(0, count, MOST):
        await storage.enqueue(new[start : start + MOST])


async def mine(storage: Storage, limit: int = 9) -> list[str]:
    return await claim_ids(storage, limit, tasks=MINE)


async def test_law02_a_claim_finds_a_job_behind_twelve_thousand_of_other_tasks(
    storage: Storage, clock: HandClock
) -> None:
    """Another service shares the queue and has no workers. A claim finds the worker's own jobs, in each of its
    queues."""
    await foreign(storage, 12_100)
    clock.advance(1)
    await storage.enqueue([job("a", task="mine"), job("b", task="mine", queue="other")])
    assert sorted([*await claim_ids(storage, 9, "default", "other", tasks=MINE), *await mine(storage)]) == ["a", "b"]
    clock.advance(1)
    await storage.enqueue([job("c", task="mine"), job("d", task="mine", priority=1)])
    assert await mine(storage, 1) == ["d"]
    assert await mine(storage) == ["c"]
    assert await mine(storage) == []


async def test_law02_a_claim_finds_jobs_behind_a_batch_task_without_room(storage: Storage, clock: HandClock) -> None:
    """A claim takes as many jobs of a task as there is room for, and skips the others."""
    await storage.enqueue([job(f"i{n:03}", task="batch") for n in range(MANY)])
    clock.advance(1)
    await storage.enqueue([job("a", task="mine"), job("b", task="mine")])

    async def claimed_with(room: int, limit: int = 9) -> list[str]:
        return await claim_ids(storage, limit, tasks={"batch": (room, None), **MINE})

    assert await claimed_with(0, 1) == ["a"]
    assert await claimed_with(3) == ["i000", "i001", "i002", "b"]
    assert await claimed_with(0) == []
    assert await claimed_with(2) == ["i003", "i004"]
    clock.advance(1)
    await storage.enqueue([job("c", task="mine")])
    assert await claimed_with(1) == ["i005", "c"]
    assert len(await claimed_with(500, 500)) == MANY - 6


@pytest.mark.parametrize("way", ["handed back", "lost", "lane", "clock", "aging", "moment", "unblocked"])
async def test_law02_a_job_that_joins_before_other_tasks_is_found(storage: Storage, clock: HandClock, way: str) -> None:
    """A claim has skipped all jobs of another task. A job that then joins in front of them is claimed in its order."""
    await storage.enqueue([job("first", task="mine")])
    if way == "lane":
        await storage.enqueue([job("lane-0", task="foreign", lane="l")])
    if way == "unblocked":
        await storage.enqueue([job("b", task="mine", limits=(("api", 1),), after=("first",))])
    held = await claim(storage, 1, tasks=MINE, lease=5)
    assert ids(held) == ["first"]
    await foreign(storage, MANY)
    clock.advance(1)
    await storage.enqueue([job("last", task="mine")])
    assert await mine(storage, 1) == ["last"]
    assert await mine(storage) == []
    expected = "a"
    if way == "handed back":
        await settle(storage, back(held[0]))
        expected = "first"
    elif way == "lost":
        clock.advance(6)
        expected = "first"
    elif way == "lane":
        await storage.enqueue([job("a", task="mine", lane="l", stride=0.25)])
    elif way == "clock":
        clock.advance(-3)
        await storage.enqueue([job("a", task="mine")])
        clock.advance(3)
    elif way == "aging":
        await storage.enqueue([job("a", task="mine", priority=100, aging=1.0)])
    elif way == "moment":
        await storage.enqueue([job("f-of-the-same-moment", task="foreign"), job("a", task="mine")])
    else:
        await settle(storage, done(held[0]))
        expected = "b"
    assert await mine(storage, 1) == [expected]
    if way != "lost":
        assert await mine(storage) == []
    assert len(await claim_ids(storage, 500, tasks={"foreign": (None, None)})) >= MANY


async def test_law02_each_worker_finds_its_jobs_behind_those_of_others(storage: Storage) -> None:
    """Workers of different tasks claim from one queue in turns, and each finds all jobs that only it can run."""
    tasks = [f"t{n}" for n in range(20)]
    for n, task in enumerate(tasks):
        await storage.enqueue([job(f"{n:02}-{m}", task=task) for m in range(6)])
    for _ in range(6):
        for n, task in enumerate(tasks):
            [own] = await claim_ids(storage, 1, tasks={task: (None, None)})
            assert own.startswith(f"{n:02}-")
    assert await claim_ids(storage, 9) == []


async def test_law02_a_lost_job_that_its_former_holder_skips_stays_claimable(
    storage: Storage, clock: HandClock
) -> None:
    """A lost job is queued behind many others. Its former holder skips it, and any other worker can claim it."""
    await foreign(storage)
    clock.advance(1)
    await storage.enqueue([job("a", task="mine")])
    assert ids(await claim(storage, 1, tasks=MINE, lease=5)) == ["a"]
    clock.advance(6)
    assert await claim_ids(storage, 1, tasks=MINE, running=("a",)) == []
    assert await mine(storage) == ["a"]


async def test_law02_jobs_that_end_at_the_head_hide_no_others(storage: Storage, clock: HandClock) -> None:
    """Skipped jobs are cancelled and new ones enqueued: a claim skips no job that it has not looked at."""
    await foreign(storage)
    clock.advance(1)
    await storage.enqueue([job("a", task="mine")])
    assert await mine(storage) == ["a"]
    await settle(storage, *[cancelled(await row(storage, f"f{n:05}")) for n in range(MANY - 5, MANY)])
    clock.advance(1)
    await storage.enqueue([job("b", task="mine"), *(job(f"g{n}", task="foreign") for n in range(9))])
    clock.advance(1)
    await storage.enqueue([job("c", task="mine")])
    assert await mine(storage) == ["b", "c"]
