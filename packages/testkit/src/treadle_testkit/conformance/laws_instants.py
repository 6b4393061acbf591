"""Instants: `run_at` and `deadline_at` are compared with the storage's clock, whatever that of the producer says. Law
12."""

from __future__ import annotations

from typing import Any, Final

import pytest

from treadle.core import defaults
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.conformance.kit import (
    FAILED,
    READY,
    WAITING,
    advance_due,
    back,
    beat,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    out,
    row,
    run,
    settle,
    states,
)
from treadle_testkit.shows import shows

WRONG: Final = (0.0, 3_600.0, 7_200.0)  # s until the instant, by three producers' clocks; by the storage's it is 3,600
LANES: Final[dict[str, dict[str, Any]]] = {
    "alone": {},
    "key": {"key": "t k"},
    "replaces": {"key": "t k", "key_conflict": "replace"},
    "lane": {"lane": "a"},
    "ageing lane": {"lane": "a", "aging": 5.0, "priority": 3},
    "labels": {"labels": ("a",), "limits": (("l", 1),)},
}


@pytest.mark.parametrize("delay", WRONG)
@pytest.mark.parametrize("more", LANES.values(), ids=list(LANES))
@shows("a job with a start time starts then by the storage's clock, however wrong the producer's is")
async def test_law12_a_job_starts_at_its_instant(
    storage: Storage, clock: HandClock, delay: float, more: dict[str, Any]
) -> None:
    """The job starts at that second, and its row has the fields as they were sent."""
    now = (await storage.enqueue([job("now")]))[0].created_at
    sent = job("a", delay=delay, run_at=now + 3_600, **more)
    [stored] = await storage.enqueue([sent])
    assert (stored.job, stored.queue_position) == (sent, None)
    assert stored.due_at == pytest.approx(now + 3_600)
    await run(storage, "now")
    assert await claim_ids(storage) == []
    clock.advance(3_599)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]
    assert (await row(storage, "a")).job == sent


@pytest.mark.parametrize("delay", WRONG)
async def test_law12_an_instant_in_the_past_is_now(storage: Storage, clock: HandClock, delay: float) -> None:
    """Such a job is queued behind those that wait already: a slow clock of a producer gains nothing."""
    before = (await storage.enqueue([job("a", run_at=1.0, delay=delay)]))[0].created_at
    clock.advance(1)
    await storage.enqueue([job("b"), job("c", run_at=before - 3_600, delay=delay), job("d")])
    assert await claim_ids(storage, 9) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("span", WRONG)
@shows("a job with a deadline expires then by the storage's clock, however wrong the producer's is")
async def test_law12_a_job_expires_at_its_instant(storage: Storage, clock: HandClock, span: float) -> None:
    """Queued, waiting and delayed jobs alike."""
    now = (await storage.enqueue([job("p", task="")]))[0].created_at
    ends: dict[str, Any] = {"deadline": span, "deadline_at": now + 3_600}
    rows = await storage.enqueue(
        [job("a", **ends), job("b", after=("p",), **ends), job("c", delay=span, run_at=now + 7_200, **ends)]
    )
    assert [stored.deadline_at for stored in rows] == [pytest.approx(now + 3_600)] * 3
    clock.advance(3_599)
    await advance_due(storage)
    assert await states(storage, "a b c") == [READY, WAITING, READY]
    clock.advance(1)
    await advance_due(storage)
    assert await states(storage, "a b c") == [FAILED, FAILED, FAILED]


async def test_law12_an_instant_counts_after_a_wait(storage: Storage, clock: HandClock) -> None:
    """A job whose upstreams end early still waits for its instant; one whose upstreams end late does not wait more."""
    now = (await storage.enqueue([job("up")]))[0].created_at
    soon, late = job("soon", after=("up",), run_at=now + 10), job("late", after=("up",), run_at=now + 30, delay=5)
    await storage.enqueue([soon, late])
    clock.advance(20)
    await settle(storage, done(await claim_one(storage)))
    assert await claim_ids(storage, 9) == ["soon"]
    clock.advance(9)
    assert await claim_ids(storage, 9) == []
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["late"]


async def test_law12_follow_up_jobs_have_instants(storage: Storage, clock: HandClock) -> None:
    """They are those of the settle's storage, too."""
    now = (await storage.enqueue([job("a")]))[0].created_at
    child = job("child", parent="a", root="a", delay=1, run_at=now + 60, deadline=1, deadline_at=now + 90)
    a = await claim_one(storage)
    await settle(storage, out(a, WAITING, function_done=True, after=("child",), followups=(child,)))
    clock.advance(59)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert (await claim_one(storage)).deadline_at == pytest.approx(now + 90)


async def test_law12_a_reopened_job_has_as_long_as_at_first(storage: Storage, clock: HandClock) -> None:
    """Its deadline counts from the reopening, as that of a job with a span."""
    now = (await storage.enqueue([job("p", task="")]))[0].created_at
    await storage.enqueue([job("a", deadline=5, deadline_at=now + 100), job("b", deadline=100)])
    await settle(storage, failed(await claim_one(storage)))
    await settle(storage, failed(await claim_one(storage)))
    clock.advance(500)
    for id in ("a", "b"):
        await settle(storage, out(await row(storage, id), READY))
        assert (await row(storage, id)).deadline_at == pytest.approx(now + 600)


async def test_law12_an_instant_stays_when_the_clock_is_corrected(storage: Storage, clock: HandClock) -> None:
    """A job enqueued while the clock was an hour ahead starts at its instant; its retry keeps the time it had left."""
    await beat(storage)
    clock.advance(3_600)
    await beat(storage)
    now = clock.moment
    await storage.enqueue([job("a", delay=50, run_at=now + 50), job("b", after=("a",), run_at=now + 70, delay=70)])
    clock.advance(-3_600)
    await beat(storage)
    clock.advance(3_649)
    await beat(storage)
    assert await claim_ids(storage) == []
    clock.advance(1)
    a = await claim_one(storage)
    clock.advance(3_600)
    await beat(storage)
    await settle(storage, back(a, 30))
    clock.advance(-3_600)
    await beat(storage)
    clock.advance(31)
    await beat(storage)
    assert await claim_ids(storage) == ["a"]


AT_ONCE: Final[dict[str, dict[str, Any]]] = {
    "delayed": {"delay": 60},
    "in lanes": {"delay": 60, "lane": "a"},
    "leased": {},
    "late": {"deadline": 60},
}


@pytest.mark.parametrize("kind", AT_ONCE)
@shows("when very many jobs become due at once, each call advances a bounded number, and jobs of other queues start")
async def test_law08_a_call_advances_few_due_jobs(storage: Storage, clock: HandClock, kind: str) -> None:
    most = defaults.DUE_STEP
    many = [job(f"s{n:04}", queue="many", **AT_ONCE[kind]) for n in range(2 * most + 1)]
    await storage.enqueue(many)
    if kind == "leased":
        while await claim_ids(storage, most, "many", lease=59.0):
            pass

    async def advanced() -> int:
        counts = [count for count in (await storage.stats()).counts if count.queue == "many"]
        return sum(count.jobs if count.state is FAILED else count.queued * (kind != "late") for count in counts)

    clock.advance(60)
    await storage.enqueue([job("quick", queue="quick")])
    assert await advanced() == 0
    assert await claim_ids(storage, 1, "quick", "many") == ["quick"]
    assert 0 < await advanced() <= most
    for first in (0, most, 2 * most) if kind != "late" else ():
        assert await claim_ids(storage, most, "many") == [new.id for new in many[first : first + most]]
