"""The rest of a limit (`Defer(limit=)`) ends with its time, also if no job is left that would end it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import json

from tests.kit import Spy, work
from treadle import App, Limit
from treadle.core import defaults
from treadle.core.limit_model import Pause
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.policy.judge import HOLD, Held
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle.worker.maintenance import STEP, end_rests
from treadle_testkit.faults import Faulty, held
from treadle_testkit.shows import shows

REST = 60.0  # seconds
HOLD_JOB = NewJob(
    id="treadle:hold:1",
    task=HOLD,
    queue=defaults.SYSTEM_QUEUE,
    payload=json.encode(Held("api", REST)).decode(),
    key=f"{HOLD} api",
    key_conflict="replace",
    lease=defaults.OWN_LEASE,
    keep=0.0,
)
STALLED = Claim(
    worker="stalled#1",
    queues=((defaults.SYSTEM_QUEUE, 1),),
    tasks={HOLD: (1, None)},
    limit=1,
    lease=defaults.OWN_LEASE,
)


@pytest.fixture
def prunes_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "PRUNE_EVERY", 0.01)


async def pauses(app: App) -> dict[str, tuple[Pause, ...]]:
    return {use.key: use.pauses for use in await app.limits.list(use=False)}


@shows("A limit that rests after `Defer(limit=)` starts jobs again, also if a stalled worker pauses it too late")
@pytest.mark.usefixtures("prunes_often")
async def test_a_pause_of_a_stalled_worker_does_not_stop_a_limit_for_good(
    app: App, storage: Storage, clock: HandClock
) -> None:
    """It arrives after another worker has ended the rest and the job of the rest: maintenance ends it."""

    @app.task(name="call", limits=["api"])
    async def call() -> int:
        return 1

    gate = asyncio.Event()
    faulty = Faulty(storage, held("set_limits", 1, gate))
    stalled = App(storage=faulty, clock=clock)
    await storage.enqueue([HOLD_JOB])
    [row] = (await storage.claim(STALLED)).records
    late = asyncio.ensure_future(stalled._core.system_tasks[HOLD].decide(row, clock()))
    await faulty.reached("set_limits", 1)
    clock.advance(defaults.OWN_LEASE + 1)
    await drain(app)  # another worker pauses the limit, and later ends the rest
    assert [each.why for each in (await pauses(app))["api"]] == ["held"]
    clock.advance(REST)
    await drain(app)
    assert await pauses(app) == {}
    [ended] = await storage.get([HOLD_JOB.id])
    assert ended is None or ended.state is State.SUCCEEDED
    gate.set()
    outcome = await late
    assert outcome.state is State.READY
    assert [each.status for each in await storage.settle([outcome])] == ["stale"]
    job = await call.enqueue()
    async with work(app):
        assert await job.result(timeout=30) == 1
    assert await pauses(app) == {}


@pytest.mark.usefixtures("prunes_often")
async def test_a_rest_whose_job_was_cancelled_ends_with_its_time(app: App, clock: HandClock) -> None:
    """Its jobs start then, and no earlier. An operator's pause stays."""

    @app.task(name="call")
    async def call() -> int:
        return 1

    await app.storage.enqueue([HOLD_JOB])
    await drain(app)
    [row] = await app.storage.get([HOLD_JOB.id])
    assert row is not None
    cancelled = Outcome(id=row.job.id, version=row.version, state=State.CANCELLED)
    assert [each.status for each in await app.storage.settle([cancelled])] == ["applied"]
    job = await call.options(limits=["api"]).enqueue()
    clock.advance(REST - 1)
    await end_rests(app.storage)
    await drain(app)
    assert [each.why for each in (await pauses(app))["api"]] == ["held"]
    await app.limits.pause("api")
    clock.advance(1)
    await end_rests(app.storage)
    await drain(app)
    assert (await pauses(app))["api"] == (Pause("api"),)
    await app.limits.resume("api")
    async with work(app):
        assert await job.result(timeout=30) == 1


async def test_each_rest_ends_by_itself(app: App, storage: Storage, clock: HandClock) -> None:
    """By the storage's clock. Rules and rests of other partitions stay."""
    start = clock()
    await app.limits.set(Limit("tenant", slots=2))
    await storage.set_limits([Pause(f"tenant:{n}", "held", start + n) for n in range(3)])
    clock.advance(1)
    await end_rests(storage)
    assert await pauses(app) == {"tenant": (), "tenant:2": (Pause("tenant:2", "held", start + 2),)}
    clock.advance(1)
    await end_rests(storage)
    assert await pauses(app) == {"tenant": ()}


@pytest.mark.usefixtures("app")
async def test_a_rest_that_was_prolonged_meanwhile_stays(clock: HandClock, storage: Storage) -> None:
    """A job prolongs it between the read and the change of the maintenance."""
    await storage.set_limits([Pause("api", "held", clock())])
    gate = asyncio.Event()
    faulty = Faulty(storage, held("set_limits", 1, gate))
    ending = asyncio.create_task(end_rests(faulty))
    await faulty.reached("set_limits", 1)
    longer = Pause("api", "held", clock() + REST)
    await storage.set_limits([longer])
    gate.set()
    await ending
    assert [use.pauses for use in await storage.limits(use=False)] == [(longer,)]


@pytest.mark.usefixtures("app")
async def test_maintenance_makes_one_more_read_without_rests(spy: Spy, clock: HandClock) -> None:
    """Rules and an operator's pause do not count. Many rests end in several calls."""
    await spy.set_limits([Limit("api", slots=1), Pause("api")])
    spy.calls.clear()
    await end_rests(spy)
    assert spy.calls == {"limits": 1}
    await spy.set_limits([Pause(f"tenant:{n}", "held", clock()) for n in range(STEP + 1)])
    spy.calls.clear()
    await end_rests(spy)
    assert spy.calls == {"limits": 1, "glance": 1, "set_limits": 2}
    assert [use.key for use in await spy.limits(use=False)] == ["api"]
