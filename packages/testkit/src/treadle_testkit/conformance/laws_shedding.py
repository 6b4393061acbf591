"""Law 16: which jobs a bounded queue sheds, and that its bound is exact with many callers at once."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from treadle.core.errors import QueueFull
from treadle.core.limit_model import Limit
from treadle.core.model import NewJob, Record
from treadle.storage.bounds import LOOK
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Transactional
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
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
    done,
    failed,
    ids,
    job,
    jobs,
    names,
    out,
    renewal,
    row,
    settle,
    states,
)
from treadle_testkit.conformance.laws_bounds import bound, full, shed, waiting
from treadle_testkit.conformance.laws_counts import agree
from treadle_testkit.conformance.moving_kit import carry, movable
from treadle_testkit.conformance.run import Another, Connect, UserTransaction
from treadle_testkit.shows import shows

PEERS = 6


@shows("a queue that drops the oldest jobs sheds as many as a call needs, in the same step", area="Limits")
async def test_law16_the_oldest_are_shed(storage: Storage, clock: HandClock) -> None:
    """The jobs that were queued first are shed, whatever their priority; they are cancelled and kept like others."""
    await bound(storage, 3, when_full="drop_oldest")
    for id, priority in (("a", 0), ("b", 9), ("c", -5)):
        await storage.enqueue([job(id, priority=priority, key=id)])
        clock.advance(1)
    await storage.enqueue(jobs("d e"))
    assert await states(storage, "a b c d e") == [CANCELLED, CANCELLED, READY, READY, READY]
    a = await row(storage, "a")
    assert (a.reason, a.error) == ("shed", "queue default was full: max_waiting is 3")
    assert (a.queue_position, a.ended_at, a.version) == (None, clock(), 1)
    [again] = await storage.enqueue([job("a2", key="a")])  # its key is free, and a2 sheds c
    assert again.job.id == "a2"
    assert await shed(storage, "a b c d e") == ["a", "b", "c"]
    assert await claim_ids(storage, 5) == ["a2", "d", "e"]
    await agree(storage, clock)


@shows("a queue that drops the lowest jobs sheds only jobs of a lower priority than the new ones", area="Limits")
async def test_law16_the_lowest_are_shed(storage: Storage, clock: HandClock) -> None:
    """The last in queue order first. A job of the same priority as the new one is not shed."""
    await bound(storage, 4, when_full="drop_lowest")
    for id, priority in (("a", 1), ("b", 0), ("c", 0), ("d", 5)):
        await storage.enqueue([job(id, priority=priority)])
        clock.advance(1)
    await full(storage, job("x"))
    await full(storage, job("x", priority=9), job("y", priority=0))
    await storage.enqueue([job("e", priority=1)])
    assert await shed(storage, "a b c d") == ["c"]
    await storage.enqueue([job("f", priority=2), job("g", priority=3)])
    assert await shed(storage, "a b c d e f") == ["b", "c", "e"]
    await full(storage, job("h", priority=1))
    await full(storage, *[job(id, priority=4) for id in ("h1", "h2", "h3", "h4")])
    await agree(storage, clock)


async def test_law16_jobs_that_are_never_shed(storage: Storage, clock: HandClock) -> None:
    """Scheduled, blocked and running jobs, jobs that ran before, and jobs of the call; then the call is refused."""
    await storage.set_limits([Limit("api", slots=1)])
    limited = (("api", 1),)
    await storage.enqueue([job("active", limits=limited), job("blocked", limits=limited), job("late", delay=99)])
    active = await claim_one(storage)
    assert await claim_ids(storage, 2) == []
    await storage.enqueue([job("ran"), job("lost")])
    _, ran = await claim(storage, 2)
    await settle(storage, back(ran, attempt=1))
    clock.advance(31)
    assert not await beat(storage, renewal(active))  # then the lease of "lost" expires
    for when_full in ("drop_oldest", "drop_lowest"):
        await bound(storage, 4, when_full=when_full)
        error = await full(storage, job("x", priority=9))
        assert error.waiting == 4
    await bound(storage, 5, when_full="drop_oldest")
    await full(storage, *jobs("x y", priority=9))
    await storage.enqueue(jobs("x"))
    await storage.enqueue(jobs("y"))
    assert await shed(storage, "active blocked late ran lost x y") == ["x"]
    await agree(storage, clock)


async def test_law16_rows_that_a_call_needs_are_not_shed(storage: Storage, clock: HandClock) -> None:
    """Rows that are returned for its jobs, superseded by them, or named in `after`."""
    await bound(storage, 4, when_full="drop_oldest")
    for id in ("a", "b", "c", "d"):
        await storage.enqueue([job(id, key=id)])
        clock.advance(1)
    await storage.enqueue(
        [
            job("a"),
            job("b2", key="b", key_conflict="replace"),
            job("w", after=("c",)),
            job("e"),
        ]
    )
    assert await states(storage, "a b b2 c d w e") == [READY, CANCELLED, READY, READY, CANCELLED, WAITING, READY]
    assert await shed(storage, "a b c d") == ["d"]
    await agree(storage, clock)


async def test_law16_a_shed_job_ends_like_a_cancelled_one(storage: Storage, clock: HandClock) -> None:
    """Its dependents are cancelled or released; `keep` decides how long it stays, and it can be reopened."""
    await bound(storage, 2, when_full="drop_oldest")
    await storage.enqueue(
        [
            job("a", keep=500),
            job("b"),
            job("doomed", after=("a",)),
            job("released", after=("a",), failures_allowed=None, queue="other"),
        ]
    )
    clock.advance(1)
    await storage.enqueue([job("c")])
    assert await states(storage, "a doomed released") == [CANCELLED, CANCELLED, READY]
    assert (await row(storage, "doomed")).reason == "upstream"
    a = await row(storage, "a")
    assert a.expires_at == pytest.approx(clock() + 500)
    await settle(storage, back(a))
    assert await states(storage, "a doomed") == [READY, WAITING]
    assert await waiting(storage) == 3
    await agree(storage, clock)
    assert (await run_all(storage)) >= 4
    clock.advance(10**8)
    while await storage.prune(100):
        pass
    await agree(storage, clock)


async def run_all(storage: Storage) -> int:
    """Run the queued jobs until none is left."""
    ran = 0
    while rows := await claim(storage, 50, "default", "other"):
        await settle(storage, *map(done, rows))
        ran += len(rows)
    return ran


async def test_law16_a_lowered_bound_ends_no_job(storage: Storage, clock: HandClock) -> None:
    """A call sheds as many jobs as it stores, not the excess that it finds."""
    await storage.enqueue(jobs(names(0, 9)))
    clock.advance(1)
    await bound(storage, 3, when_full="drop_oldest")
    await storage.enqueue(jobs("x y"))
    assert await shed(storage, names(0, 9)) == ["j00", "j01"]
    assert await waiting(storage) == 9
    await storage.enqueue(jobs("a b c d"))
    assert await waiting(storage) == 9


async def test_law16_the_search_for_jobs_to_shed_is_bounded(storage: Storage, clock: HandClock) -> None:
    """Behind more jobs that may not be shed than a call looks at, none is found: the call is refused."""
    count = LOOK
    await storage.enqueue([job(f"r{n:04}") for n in range(count)])
    for _ in range(count // 200):
        rows = await claim(storage, 200)
        await settle(storage, *(back(record, 1, attempt=1) for record in rows))
    clock.advance(1)
    await advance_due(storage)
    clock.advance(1)
    await storage.enqueue(jobs("a b"))
    await bound(storage, count + 2, when_full="drop_oldest")
    await storage.enqueue([job("c")])  # it looks at LOOK + 1 jobs
    assert await shed(storage, "a b c") == ["a"]
    await storage.enqueue([job("r", key="r", delay=5)])
    assert await shed(storage, "a b c r") == ["a", "b"]
    await bound(storage, count + 1, when_full="drop_lowest")
    await full(storage, job("d"))


async def test_law16_each_queue_of_a_call_obeys_its_own_bound(storage: Storage, clock: HandClock) -> None:
    """Each queue of a call obeys its own bound; if one refuses, none sheds."""
    await bound(storage, 1, "x", when_full="drop_oldest")
    await bound(storage, 1, "y")
    await storage.enqueue([job("x1", queue="x"), job("y1", queue="y")])
    await full(storage, job("x2", queue="x"), job("y2", queue="y"))
    assert await states(storage, "x1 y1") == [READY, READY]
    await bound(storage, 1, "y", when_full="drop_lowest")
    await storage.enqueue([job("x2", queue="x"), job("y2", queue="y", priority=1), job("z", queue="z")])
    assert await shed(storage, "x1 x2 y1 y2") == ["x1", "y1"]
    await agree(storage, clock)


# --- many callers


async def accepted(storage: Storage, new: list[NewJob]) -> list[Record] | None:
    try:
        return await storage.enqueue(new)
    except QueueFull:
        return None


@shows("a bound is exact when many producers race for the last places", area="Limits")
async def test_law16_many_producers_do_not_exceed_a_bound(storage: Storage, connect: Connect, clock: HandClock) -> None:
    """As many calls are accepted as fit, no more and no fewer."""
    await bound(storage, 20)
    storages = [storage, *[await connect() for _ in range(PEERS - 1)]]
    calls = [
        accepted(peer, jobs(names(0, 3, f"{turn}-{n}-"), **({"key": f"{turn}{n}"} if turn == 2 else {})))
        for turn in range(3)
        for n, peer in enumerate(storages)
    ]
    answers = await asyncio.gather(*calls)
    stored = {record.job.id for rows in answers if rows is not None for record in rows}
    assert await waiting(storage) == len(stored)
    assert 18 <= len(stored) <= 20
    await agree(storage, clock)


async def test_law16_calls_of_many_producers_that_shed_are_accepted(
    storage: Storage, connect: Connect, clock: HandClock
) -> None:
    """Each call is accepted, and as many jobs wait as the bound allows."""
    await bound(storage, 5, when_full="drop_oldest")
    storages = [storage, *[await connect() for _ in range(PEERS - 1)]]
    await asyncio.gather(*(peer.enqueue([job(f"{turn}-{n}")]) for turn in range(4) for n, peer in enumerate(storages)))
    assert await waiting(storage) == 5
    await agree(storage, clock)


async def test_law16_no_job_is_lost_between_claims_and_sheds(
    storage: Storage, connect: Connect, clock: HandClock
) -> None:
    """Nothing is lost between claims and sheds: each job is claimed, waits, or was shed."""
    await bound(storage, 6, when_full="drop_oldest")
    storages = [storage, *[await connect() for _ in range(PEERS - 1)]]
    taken: list[str] = []

    async def produce(each: Storage, n: int) -> None:
        for turn in range(5):
            await accepted(each, [job(f"{n}-{turn}")])

    async def work(each: Storage) -> None:
        for _ in range(5):
            rows = await claim(each, 2)
            taken.extend(ids(rows))
            await settle(each, *map(done, rows))

    await asyncio.gather(
        *(produce(peer, n) if n % 2 else work(peer) for n, peer in enumerate(storages)),
    )
    assert len(taken) == len(set(taken))
    wanted = " ".join(f"{n}-{turn}" for n in range(1, PEERS, 2) for turn in range(5))
    for record in await storage.get(wanted.split()):
        if record is not None:
            ended = SUCCEEDED if record.job.id in taken else CANCELLED
            assert record.state in (READY, ended)
    assert await waiting(storage) <= 6
    assert [state for state in await states(storage, wanted) if state is RUNNING] == []
    await agree(storage, clock)


async def test_law16_a_repeated_call_needs_no_room(storage: Storage) -> None:
    """A call is repeated after its answer was lost. It is not refused because of the jobs that it stored itself."""
    await bound(storage, 2)
    await storage.enqueue(jobs("a b"))
    assert ids(await storage.enqueue(jobs("a b"))) == ["a", "b"]
    await bound(storage, 2, when_full="drop_oldest")
    await storage.enqueue(jobs("c d"))
    assert ids(await storage.enqueue(jobs("c d"))) == ["c", "d"]
    assert await shed(storage, "a b c d") == ["a", "b"]
    rows = await storage.enqueue(jobs("a b"))  # shed meanwhile: it is that job
    assert [record.state for record in rows] == [CANCELLED, CANCELLED]


async def test_law16_moved_rows_need_no_room(storage: Storage, another: Another, clock: HandClock) -> None:
    """A move carries the bound and every row."""
    movable(storage)  # skips otherwise
    await storage.enqueue(jobs("a b c"))
    await bound(storage, 1)
    target = await another()
    await carry(storage, target)
    assert await waiting(target) == 3
    await full(target, job("d"))
    await settle(target, *(failed(record) for record in await claim(target, 3)))
    await target.enqueue([job("d")])
    await agree(target, clock)


async def test_law16_shed_outcomes_are_final(storage: Storage) -> None:
    """A settle with the version before it is stale, and no claim returns the job."""
    await bound(storage, 1, when_full="drop_oldest")
    [before] = await storage.enqueue([job("a")])
    await storage.enqueue([job("b")])
    [answer] = await storage.settle([out(before, CANCELLED, reason="asked")])
    assert answer.status == "stale"
    assert await claim_ids(storage, 5) == ["b"]


async def test_law16_a_refusal_leaves_the_users_transaction_usable(
    storage: Storage, user_transaction: UserTransaction, clock: HandClock
) -> None:
    """A refusal leaves the transaction usable; its jobs take room from the commit on, and none after a roll-back."""
    await bound(storage, 2)
    async with user_transaction(storage) as user:
        within = cast("Transactional", storage).within(user.given)
        await within.enqueue([job("a")])
        with pytest.raises(QueueFull) as caught:
            await within.enqueue(jobs("b c"))
        assert (caught.value.waiting, caught.value.asked) == (1, 2)
        await user.roll_back()
    await storage.enqueue([job("d")])
    async with user_transaction(storage) as user:
        within = cast("Transactional", storage).within(user.given)
        await within.enqueue([job("e")])
        await user.commit()
    await full(storage, job("f"))
    assert await states(storage, "a b c d e") == [None, None, None, READY, READY]
    await bound(storage, 2, when_full="drop_oldest")
    async with user_transaction(storage) as user:
        await cast("Transactional", storage).within(user.given).enqueue([job("g")])
        await user.roll_back()
    assert await shed(storage, "d e g") == []
    await agree(storage, clock)
