"""Each bound of a storage is checked where its value is written, not by the call of a background loop.

A claim that is refused runs nothing, and a heartbeat that is refused renews no lease of its worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.kit import Spy, presences, work
from treadle import App, BadOption, Defer, Limit, Retry, TooLarge, Worker, current
from treadle.core import defaults
from treadle.core.limit_model import Pause
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence
from treadle.core.ranges import LONGEST_TTL, MOST_CALL, MOST_CONCURRENCY, MOST_QUEUES

LONG = "x" * 256
AGES = 2 * defaults.MAX_DELAY
OWN = "Treadle makes it, within its range"
CAPPED = "any value of the user is reduced to the range"


def _app() -> App:
    return App("memory://")


def _job(**options: Any) -> Callable[[], object]:
    return lambda: _app().stub("t").options(**options).job()


def _task(**options: Any) -> Callable[[], object]:
    return lambda: _app().task(**options)(_nothing)


async def _nothing() -> None: ...


def _worker(**options: Any) -> Callable[[], object]:
    return lambda: Worker(_app(), **options)


def _limit(**fields: Any) -> Callable[[], object]:
    return lambda: _app().limits.declare(Limit("a", **fields))


FRONTS: dict[type, dict[str, Callable[[], object] | str]] = {
    Claim: {
        "worker": _worker(name=LONG),
        "queues": _worker(queues=[str(number) for number in range(MOST_QUEUES + 1)]),
        "tasks": "the start of a worker counts them",
        "limit": _worker(concurrency=MOST_CONCURRENCY + 1),
        "lease": _worker(lease=AGES),
        "ids": OWN,
        "running": _worker(concurrency=MOST_CONCURRENCY + 1),
        "hand_off": _worker(poll=AGES),
        "reach": OWN,
    },
    Presence: {
        "worker": _worker(name=LONG),
        "queues": _worker(queues=[LONG]),
        "tasks": _task(name=LONG),
        "slots": _worker(concurrency=10**10),
        "labels": _worker(labels=[str(number) for number in range(65)]),
        "resources": _worker(resources={str(number): 1 for number in range(65)}),
        "needs": _task(requires=[str(number) for number in range(65)]),
        "ttl": CAPPED,
        "paused": CAPPED,
        **dict.fromkeys(
            ("host", "pid", "running", "uptime", "gone", "gathering", "draining", "age", "versions", "reserved"), OWN
        ),
    },
    LeaseRenewal: {"note": "a run checks it", **dict.fromkeys(("id", "version", "checkpoints", "reach"), OWN)},
    Outcome: {
        "delay": lambda: Retry.after(AGES),
        "keep": _job(keep=AGES),
        "followups": "the outcome is refused alone, with this reason: see test_refused.py",
        "after": "the outcome is refused alone, with this reason: see test_refused.py",
        **dict.fromkeys(("result", "value", "checkpoints"), "the run checks its size, and fails with it"),
        **dict.fromkeys(("error", "reason"), CAPPED),
        "note": "a run checks it",
        "spent": "current().spent and the report of a runner check it",
        **dict.fromkeys(
            ("id", "version", "state", "attempt", "required", "failures_allowed", "function_done", "reach"), OWN
        ),
    },
    NewJob: {
        "id": _job(id=LONG),
        "task": _task(name=LONG),
        "payload": "the call checks its size",
        "queue": _job(queue=LONG),
        "priority": _job(priority=10**10),
        "delay": _job(delay=AGES),
        "key": _job(key=LONG),
        "key_conflict": OWN,
        "key_window": OWN,
        "key_until": OWN,
        "after": _job(after=[str(number) for number in range(100_001)]),
        "required": OWN,
        "failures_allowed": OWN,
        "wait_timeout": _job(after=["a"], wait_timeout=AGES),
        "limits": _job(limits=[str(number) for number in range(65)]),
        "lane": _job(lane=LONG),
        "stride": _job(lane=("a", 1e-9)),
        "aging": _job(aging=AGES),
        "keep": _job(keep=AGES),
        "keep_failed": _job(keep_failed=AGES),
        "deadline": _job(expires=AGES),
        "retry": lambda: Retry(base=AGES),
        "lease": _job(lease=AGES),
        "labels": _job(labels=[str(number) for number in range(17)]),
        "headers": _job(headers={"a": "x" * 10_000}),
        **dict.fromkeys(("root", "parent", "function_done", "reach", "run_at", "deadline_at", "nonce"), OWN),
    },
    Limit: {
        "name": lambda: _app().limits.declare(Limit(LONG, slots=1)),
        "slots": _limit(slots=10**10),
        "rate": _limit(rate=10**10),
        "per": _limit(rate=1, per=AGES),
        "how": _limit(slots=1, how="other"),
        "burst": _limit(rate=1, how="bucket", burst=10**10),
        "hold": _limit(slots=1, hold="other"),
        "max_waiting": lambda: _app().limits.declare(Limit("queue:a", max_waiting=10**10)),
        "when_full": lambda: _app().limits.declare(Limit("queue:a", max_waiting=1, when_full="other")),  # type: ignore[arg-type]
    },
    Pause: {"name": lambda: Defer(1, limit=LONG), "why": OWN, "until": CAPPED},
}
REFUSED = [
    (kind, name, front)
    for kind, fields in FRONTS.items()
    for name, front in fields.items()
    if not isinstance(front, str)
]


@pytest.mark.parametrize("kind", FRONTS)
def test_each_field_that_a_storage_checks_has_a_place_in_front(kind: Any) -> None:
    assert set(FRONTS[kind]) == set(kind.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "name", "front"), REFUSED, ids=[f"{kind.__name__}.{name}" for kind, name, _ in REFUSED]
)
def test_a_value_out_of_range_is_refused_where_it_is_written(
    kind: type, name: str, front: Callable[[], object]
) -> None:
    with pytest.raises((BadOption, TooLarge)):
        front()


@pytest.mark.parametrize("limit", ["", " a", "a\nb", "treadle.x"])
def test_a_name_that_no_limit_can_have_is_refused_by_defer(limit: str) -> None:
    with pytest.raises(BadOption):
        Defer(1, limit=limit)


async def test_a_worker_serves_as_many_queues_as_it_accepts(app: App) -> None:
    """Its claims also name the system queue."""

    @app.task(queue="q7")
    async def one() -> int:
        return 1

    async with work(app, queues=[f"q{number}" for number in range(MOST_QUEUES)]):
        job = await one.enqueue()
        assert await job.result(timeout=60) == 1


async def test_a_worker_without_queues_given_refuses_more_queues_than_a_claim_names(app: App) -> None:
    for number in range(MOST_QUEUES + 1):
        app.task(name=f"t{number}", queue=f"q{number}")(_nothing)
    with pytest.raises(BadOption, match=r"queues.*at most 1,000, found 1,001"):
        await Worker(app).start()


async def test_a_worker_with_more_tasks_than_a_claim_names_does_not_start(app: App) -> None:
    for number in range(MOST_CALL + 1):
        app.task(name=f"t{number}")(_nothing)
    with pytest.raises(BadOption, match=r"tasks.*at most 10,000"):
        await Worker(app).start()


@pytest.mark.parametrize("lease", [LONGEST_TTL / 2, LONGEST_TTL * 20, timedelta(days=36_500)])
async def test_a_worker_with_a_lease_of_days_sends_heartbeats(app: App, spy: Spy, lease: float | timedelta) -> None:
    @app.task
    async def one() -> int:
        return 1

    async with work(app, lease=lease):
        job = await one.enqueue()
        assert await job.result(timeout=60) == 1
        [worker] = await spy.until(lambda: presences(app.storage), "the first heartbeat")
        assert worker.ttl <= LONGEST_TTL


@pytest.mark.parametrize("pause", [1e12, math.inf])
async def test_a_throttle_that_pauses_for_ever_keeps_no_heartbeat_from_being_sent(app: App, pause: float) -> None:
    async def throttle() -> float:
        return pause

    worker = work(app, throttle=throttle)
    async with worker:
        assert worker._core.session is not None
        await worker._core.session.parts.heartbeat.once()
    assert not worker.running


async def test_a_note_that_no_heartbeat_can_store_is_refused_in_the_run(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def writes() -> str:
        try:
            await current().progress(0.5, "x" * 2**21)
        except TooLarge as error:
            return str(error)
        return ""

    async with work(app):
        job = await writes.enqueue()
        assert await job.result(timeout=60) == "progress is 2,097,178 long, the limit is 1,048,576"
