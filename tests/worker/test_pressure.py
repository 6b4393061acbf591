"""A worker under pressure slows down and reports it; an event reports a workflow without waiters."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit import Spy, Told, work
from tests.waiting import Signal
from treadle import AIMD, App, Backlog, Event, Retry, flow
from treadle.core.query_model import Query
from treadle.testing import HandClock
from treadle.worker.backlog import BacklogMonitor
from treadle_testkit.shows import shows


@shows("failures slow the claims of a worker with `throttle=AIMD()`, and successes end the delay")
async def test_failures_slow_a_worker_down(app: App, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [True]

    @app.task(name="f", retry=Retry(attempts=1))
    async def f() -> None:
        if broken[0]:
            raise RuntimeError("down")

    throttle, decided = AIMD(base=0.05, max=0.05), Signal().after(monkeypatch, AIMD, "__call__")
    await app.enqueue([f.job() for _ in range(3)])
    async with work(app, throttle=throttle, concurrency=1):
        await told.until("failed", 3)
        await decided.until(lambda: throttle.delay, "a pause")
        broken[0] = False
        while throttle.delay:
            job = await f.enqueue()
            await job.result(timeout=30)


@shows("`on_backlog=` is called once for each episode of a backlog")
async def test_a_backlog_is_reported_once_an_episode(app: App) -> None:
    told: list[Backlog] = []
    heard, go = asyncio.Event(), asyncio.Event()

    @app.task(name="slow")
    async def slow() -> None:
        await go.wait()

    async def on_backlog(backlog: Backlog) -> None:
        told.append(backlog)
        heard.set()
        raise RuntimeError("a listener that fails harms nobody")

    jobs = await app.enqueue([slow.job() for _ in range(5)])
    async with work(app, concurrency=2, on_backlog=on_backlog, backlog_after=0.05, name="w"):
        async with asyncio.timeout(30):
            await heard.wait()
        [backlog] = told
        assert backlog.worker == "w"
        assert (backlog.running, backlog.queued) in {(2, 3), (2, 4), (1, 4)}  # the second may be in progress
        assert backlog.seconds >= 0.05
        go.set()
        for job in jobs:
            await job.result(timeout=30)
    assert len(told) == 1


@shows("a worker with full slots and an empty queue reports no backlog")
async def test_full_slots_and_an_empty_queue_are_no_backlog(app: App, told: Told) -> None:
    said: list[Backlog] = []
    go = asyncio.Event()

    @app.task(name="slow")
    async def slow() -> None:
        await go.wait()

    await app.enqueue([slow.job() for _ in range(2)])
    async with work(app, concurrency=2) as worker:
        await told.until("started", 2)
        assert worker._core.session is not None
        slots = worker._core.session.state
        alarm = BacklogMonitor(said.append, 60.0, None, slots, app.storage, ["default"])
        assert slots.demand.behind_since is not None  # it took as many jobs as it could
        await alarm.look(slots.demand.behind_since + 61)
        assert slots.demand.behind_since is None  # no job is queued any more
        go.set()
    assert said == []


def two_steps(app: App) -> tuple[list[Event], asyncio.Event]:
    orphans: list[Event] = []
    heard = asyncio.Event()

    @app.task(name="leaf")
    async def leaf(n: int) -> int:
        return n

    @app.task(name="root")
    async def root() -> object:
        return flow(leaf.job(1), leaf.job(2))

    @app.on("workflow.orphaned")
    def orphaned(event: Event) -> None:
        orphans.append(event)
        heard.set()

    return orphans, heard


@shows("`workflow.orphaned` is emitted once for a workflow without a waiting caller", area="Workflows")
async def test_a_workflow_without_a_waiter_emits_orphaned_once(app: App, told: Told) -> None:
    orphans, heard = two_steps(app)
    job = await app.tasks["root"].enqueue()
    async with work(app), work(app), asyncio.timeout(30):
        await heard.wait()
        await told.until("workflow.ended")
    [event] = orphans
    assert (event.id, event.task, event.states) == (job.id, "root", {"succeeded": 3})
    assert event.record is not None
    assert event.record.value == "2" or event.record.value == "1"  # the last result, as stored


@shows("`workflow.orphaned` is not emitted for a workflow that a caller waited for", area="Workflows")
async def test_a_workflow_with_a_waiter_emits_no_orphaned(app: App, spy: Spy, told: Told) -> None:
    orphans, _ = two_steps(app)
    waited = await app.tasks["root"].enqueue()
    waiting = asyncio.create_task(waited.result(timeout=30))

    async def marked() -> bool:
        return len((await app.storage.find(Query(root=waited.id))).records) > 1

    await spy.until(marked, "the mark of a caller that waits")
    waiting.cancel()  # gave up; but did wait
    alone = await app.tasks["root"].enqueue()
    async with work(app), asyncio.timeout(30):
        await told.until("workflow.orphaned")
        await told.until("workflow.ended", 2)
    assert [event.id for event in orphans] == [alone.id]


@shows("one of two processes emits `workflow.orphaned` for a workflow, not both", area="Workflows")
async def test_one_of_two_processes_emits_the_event(app: App, spy: Spy, clock: HandClock) -> None:
    orphans, heard = two_steps(app)
    other = App(storage=spy, clock=clock)
    other_orphans, _ = two_steps(other)
    job = await app.tasks["leaf"].enqueue(1)
    async with work(app), asyncio.timeout(30):
        await heard.wait()
        assert other._core.orphans.listening
        await other._core.orphans._ended(orphans[0])  # as if it had ended there as well
    assert (len(orphans), len(other_orphans)) == (1, 0)
    assert orphans[0].id == job.id
