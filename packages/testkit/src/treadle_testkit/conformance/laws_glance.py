"""A glance: what `stats` shows of queues, workers and limits, counted up to a bound."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.model import Presence
from treadle.core.query_model import Glance, QueueGlance
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    WAITING,
    advance_due,
    back,
    beat,
    claim,
    claim_ids,
    claim_one,
    done,
    enqueue_system_rows,
    failed,
    ids,
    job,
    jobs,
    names,
    row,
    run,
    settle,
    states,
)
from treadle_testkit.conformance.run import Connect
from treadle_testkit.shows import shows

KINDS = ("running", "scheduled", "blocked", "waiting", "failed")


async def counted(storage: Storage) -> tuple[QueueGlance, ...]:
    """The queues as `stats` counts them."""
    by_queue: dict[str, Counter[str]] = {}
    oldest: dict[str, float] = {}
    for count in (await storage.stats()).counts:
        kinds = by_queue.setdefault(count.queue, Counter())
        if count.oldest is not None:
            oldest[count.queue] = max(oldest.get(count.queue, 0.0), count.oldest)
        if count.state is READY:
            kinds["queued"] += count.queued
            kinds["blocked"] += count.blocked
            kinds["scheduled"] += count.jobs - count.queued - count.blocked
        elif count.state in (RUNNING, WAITING, FAILED):
            kinds[str(count.state)] += count.jobs
    return tuple(
        structs.replace(QueueGlance(name=name, oldest=oldest.get(name)), **kinds)
        for name, kinds in sorted(by_queue.items())
        if +kinds
    )


async def glanced(storage: Storage, queue: str = "default", **options: Any) -> QueueGlance | None:
    return next((seen for seen in (await storage.glance(**options)).queues if seen.name == queue), None)


async def mixed(storage: Storage, clock: HandClock) -> None:
    """Store jobs of every kind in several queues; each queue has several priorities."""
    await storage.set_limits([Limit("shut", slots=0), Limit("one", slots=1), Limit("queue:z", slots=4)])
    for queue in "zxy":
        for priority in (3, 0, -2):
            clock.advance(1)
            await storage.enqueue([job(f"{queue}{priority}", queue=queue, priority=priority)])
    clock.advance(2)
    await storage.enqueue(
        [
            *jobs("later sooner", queue="x", delay=60),
            job("later-y", queue="y", delay=60, task="u"),
            *jobs("in out", queue="y", limits=(("one", 1),), priority=9),
            *jobs("aside", queue="only-aside", limits=(("shut", 1),)),
            job("promise", task="", queue="promises"),
            job("fan", queue="x", after=("x0", "y0")),
            *jobs("won lost dropped", queue="ended"),
            *jobs("won-2 dropped-2", queue="done"),
        ]
    )
    await enqueue_system_rows(storage, job("own", queue="treadle", task="treadle.own", delay=9))
    await run(storage, "won", "won-2")
    await run(storage, "lost", to=FAILED)
    await run(storage, "dropped", "dropped-2", to=CANCELLED)
    assert await claim_ids(storage, 2, "y") == ["in", "y3"]
    assert await claim_ids(storage, 9, "only-aside") == []
    await claim_one(storage, "z")


@shows("a glance shows the numbers of `stats`")
async def test_more_a_glance_equals_the_counts(storage: Storage, clock: HandClock) -> None:
    """Queue by queue, also of queues without a queued job and of the system queue; ended jobs show no queue."""
    await mixed(storage, clock)
    clock.advance(0.5)
    seen = await storage.glance()
    assert seen.queues == await counted(storage)
    names = [queue.name for queue in seen.queues if queue.name != "treadle"]
    assert names == ["ended", "only-aside", "promises", "x", "y", "z"]
    assert seen.queues[-3:] == (
        QueueGlance(name="x", queued=3, oldest=7.5, scheduled=2, waiting=1),
        QueueGlance(name="y", queued=2, oldest=3.5, running=2, scheduled=1, blocked=1),
        QueueGlance(name="z", queued=2, oldest=9.5, running=1),
    )
    assert (seen.at, seen.capped) == (clock(), ())
    assert seen.limits == (await storage.stats()).limits
    assert not any(queue.queued_capped for queue in seen.queues)


async def test_more_a_glance_at_an_empty_storage_is_empty(storage: Storage, clock: HandClock) -> None:
    assert await storage.glance() == Glance(at=clock())


async def test_more_a_glance_follows_every_step(storage: Storage, clock: HandClock) -> None:
    """It counts each job once, under its kind at that moment, also after maintenance has moved it."""
    await storage.enqueue(jobs("a b c d"))
    a, b, c = await claim(storage, 3, lease=5)
    assert await glanced(storage) == QueueGlance(name="default", queued=1, oldest=0.0, running=3)
    await settle(storage, done(a), failed(b), back(c, 60))
    assert await glanced(storage) == QueueGlance(name="default", queued=1, oldest=0.0, scheduled=1, failed=1)
    [d] = await claim(storage, 1, lease=5)
    clock.advance(61)
    assert await glanced(storage) == QueueGlance(name="default", running=1, scheduled=1, failed=1)
    await advance_due(storage)
    assert await glanced(storage) == QueueGlance(name="default", queued=2, oldest=61.0, failed=1)
    await run(storage, "c", d.job.id)
    await settle(storage, back(await row(storage, "b")))
    assert await glanced(storage) == QueueGlance(name="default", queued=1, oldest=0.0)


async def test_more_a_glance_does_no_maintenance(storage: Storage, clock: HandClock) -> None:
    """It shows the stored rows, even if leases have expired and jobs are due."""
    await storage.enqueue([job("a"), job("b", delay=10), job("c", deadline=10, delay=99)])
    await claim_one(storage, lease=5)
    before = await storage.get(["a", "b", "c"])
    clock.advance(11)
    assert await glanced(storage) == QueueGlance(name="default", running=1, scheduled=2)
    assert await storage.get(["a", "b", "c"]) == before


@pytest.mark.parametrize("first", [5, -5, 0])
async def test_more_the_oldest_of_all_priorities(storage: Storage, clock: HandClock, first: int) -> None:
    """Not the first in the order of claims; lanes and ageing count as their positions do."""
    await storage.enqueue([job("first", priority=first)])
    for priority in (-5, 0, 5):
        clock.advance(3)
        await storage.enqueue([job(f"p{priority}", priority=priority), job(f"aged{priority}", aging=2.0, lane="x")])
    clock.advance(1)
    seen = await glanced(storage)
    assert seen is not None
    assert seen.oldest == 10.0
    assert (seen,) == await counted(storage)
    while await claim(storage, 1):
        assert (await storage.glance()).queues == await counted(storage)


@shows("a glance counts up to its bound, and says which counts stopped there")
async def test_more_queued_jobs_are_counted_to_the_bound(storage: Storage, clock: HandClock) -> None:
    """Each queue has its own count, over all priorities."""
    await storage.enqueue([job(f"x{n}", queue="x", priority=n % 3) for n in range(5)])
    await storage.enqueue([job(f"y{n}", queue="y", priority=n % 3) for n in range(3)])
    clock.advance(2)
    seen = await storage.glance(3)
    assert seen.queues == (
        QueueGlance(name="x", queued=3, queued_capped=True, oldest=2.0),
        QueueGlance(name="y", queued=3, oldest=2.0),
    )
    assert seen.capped == ()
    assert await glanced(storage, "x", most=5) == QueueGlance(name="x", queued=5, oldest=2.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_more_each_other_kind_is_counted_to_the_bound(storage: Storage, kind: str) -> None:
    """Over all queues together; the other kinds are not affected."""
    await storage.set_limits([Limit("shut", slots=0)])
    special: dict[str, dict[str, Any]] = {
        "scheduled": {"delay": 60},
        "blocked": {"limits": (("shut", 1),)},
        "waiting": {"task": ""},
    }
    options = special.get(kind, {})
    await storage.enqueue([job(f"{queue}{n}", queue=queue, **options) for queue in "xy" for n in range(4)])
    if kind == "failed":
        await run(storage, *[f"{queue}{n}" for queue in "xy" for n in range(4)], to=FAILED)
    elif kind in ("running", "blocked"):
        assert len(await claim(storage, 9, "x", "y")) == (8 if kind == "running" else 0)
    await storage.enqueue(jobs("queued", queue="z"))
    for most, capped in ((7, (kind,)), (3, (kind,)), (8, ()), (9, ())):
        seen = await storage.glance(most)
        shown = {queue.name: structs.asdict(queue)[kind] for queue in seen.queues}
        assert seen.capped == capped
        assert sum(shown.values()) == min(most, 8)
        assert all(number <= 4 for number in shown.values())
        assert QueueGlance(name="z", queued=1, oldest=0.0) in seen.queues
        assert all(structs.asdict(queue)[other] == 0 for queue in seen.queues for other in KINDS if other != kind), (
            "another kind is counted"
        )


async def test_more_several_kinds_stop_at_the_bound(storage: Storage, clock: HandClock) -> None:
    """Their names are in `capped`, in a fixed order."""
    await storage.enqueue([*jobs(names(0, 4, "f")), *jobs(names(0, 4, "s"), delay=9), job("p", task="")])
    await run(storage, *names(0, 4, "f").split(), to=FAILED)
    seen = await storage.glance(3)
    assert seen.capped == ("scheduled", "failed")
    assert seen.queues == (QueueGlance(name="default", scheduled=3, waiting=1, failed=3),)


async def test_more_a_glance_has_the_workers(storage: Storage, clock: HandClock) -> None:
    """Workers are listed with their age until their `ttl` is over or they stop."""
    old, new = Presence(worker="old", slots=2, queues=("q",), ttl=10), Presence(worker="new", ttl=100)
    await storage.heartbeat(old, [], 30)
    clock.advance(4)
    await storage.heartbeat(new, [], 30)
    assert sorted(await ages(storage)) == [("new", 0.0), ("old", 4.0)]
    assert (await storage.glance()).workers == (await storage.stats()).workers
    clock.advance(7)
    assert await ages(storage) == [("new", 7.0)]
    await storage.heartbeat(Presence(worker="new", gone=True), [], 30)
    assert await ages(storage) == []


async def ages(storage: Storage) -> list[tuple[str, float]]:
    return [(worker.worker, worker.age) for worker in (await storage.glance()).workers]


async def test_more_a_glance_has_the_limits_in_use(storage: Storage, clock: HandClock) -> None:
    """Their use and their pauses, as `stats` shows them; the jobs of a paused queue are still queued."""
    await storage.set_limits([Limit("one", slots=1), Limit("pace", rate=2, per=60), Pause("queue:held", "held", 9e9)])
    await storage.enqueue([*jobs("a b", limits=(("one", 1), ("pace", 1))), *jobs("c d", queue="held")])
    assert await claim_ids(storage, 9, "default", "held") == ["a"]
    seen = await storage.glance()
    assert seen.limits == (await storage.stats()).limits
    uses: dict[str, LimitUse] = {limit_use.key: limit_use for limit_use in seen.limits}
    assert (uses["one"].used, uses["one"].blocked, uses["pace"].starts) == (1, 1, 1)
    assert [pause.why for pause in uses["queue:held"].pauses] == ["held"]
    assert await glanced(storage, "held") == QueueGlance(name="held", queued=2, oldest=0.0)


async def test_more_a_glance_sees_jobs_of_another_connection(
    storage: Storage, connect: Connect, clock: HandClock
) -> None:
    """It shows the jobs of every process."""
    other = await connect()
    await storage.enqueue(jobs("a b"))
    [a] = await claim(other)
    await beat(storage, worker="v")
    seen = await other.glance()
    assert seen.queues == (QueueGlance(name="default", queued=1, oldest=0.0, running=1),)
    assert [worker.worker for worker in seen.workers] == ["v"]
    await settle(storage, done(a))
    assert await glanced(other) == QueueGlance(name="default", queued=1, oldest=0.0)
    assert await states(other, "a b") == ["succeeded", "ready"]
    assert ids(await storage.get(["a"])) == ["a"]
