"""Dead letters: selected by filter and number, retried automatically, and the jobs that wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit import Spy, Told, work
from treadle import Abort, App, BadOption, JobFailed, Redrive, Retry
from treadle.core.model import State
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle.worker.redrive import Redriver
from treadle.worker.state import WorkerState
from treadle_testkit.shows import shows


def failing(app: App) -> tuple[Any, list[int], list[bool]]:
    ran: list[int] = []
    broken = [True]

    @app.task(name="f", retry=Retry(attempts=1))
    async def f(n: int) -> int:
        ran.append(n)
        if n < 0:
            raise Abort("never again")
        if broken[0]:
            raise RuntimeError("the service is down")
        return n

    return f, ran, broken


async def states(app: App) -> list[State]:
    return [row.state async for row in app.jobs.iterate(task="f")]


@shows("`app.dead.retry(limit=)` retries no more failed jobs than the limit")
async def test_a_retry_of_dead_jobs_obeys_its_limit(app: App, clock: HandClock) -> None:
    f, ran, broken = failing(app)
    for n in range(5):
        await f.enqueue(n)
        clock.advance(1)
    await drain(app)
    broken[0] = False
    assert await app.dead.retry(limit=2, task="f") == 2
    ran.clear()
    await drain(app)
    assert sorted(ran) == [0, 1]
    assert len((await app.dead.list()).records) == 3
    assert await app.dead.purge(task="f") == 3
    clock.advance(61)
    await app.storage.prune(100)
    assert (await app.dead.list()).records == ()
    for wrong in (0, -1, True, "all"):
        with pytest.raises(BadOption, match="limit"):
            await app.dead.retry(limit=wrong)  # type: ignore[arg-type]


@shows("a retry also restores the jobs that the failure had cancelled")
async def test_dependents_of_a_retried_job_wait_again(app: App) -> None:
    f, _, broken = failing(app)
    job = await f.enqueue(1)
    after = await f.options(after=job).enqueue(2)
    await drain(app)
    with pytest.raises(JobFailed):
        await job.result(timeout=0)
    broken[0] = False
    assert await app.dead.retry(task="f") == 1
    with pytest.raises(TimeoutError):
        await job.result(timeout=0)
    async with work(app):
        assert await job.result(timeout=30) == 1
        assert await after.result(timeout=30) == 2  # the dependent that was doomed waits again too


def redriver(app: App, storage: Storage, clock: HandClock, rule: Redrive) -> Redriver:
    return Redriver(rule, WorkerState("w", 1), storage, ["default"], lambda: app.tasks, clock)


@shows("each redrive of a job waits longer than the one before, up to `max_times`")
async def test_each_redrive_comes_later_and_their_number_is_bounded(
    app: App, storage: Storage, clock: HandClock
) -> None:
    f, ran, _ = failing(app)
    await f.enqueue(1)
    await f.enqueue(-1)  # aborted: not to be retried
    rule, began, moments = Redrive(backoff=100, max_times=3), clock.moment, []
    await drain(app)
    for _ in range(150):
        clock.advance(10)
        # A new worker each time, so that nothing is remembered in a process.
        if await redriver(app, storage, clock, rule).look():
            moments.append(clock.moment - began)
            await drain(app)
    assert moments == [100, 300, 700]
    assert ran == [1, -1, 1, 1, 1]
    assert await states(app) == [State.FAILED] * 2


@shows("two workers that redrive at once reopen each job once")
async def test_two_workers_reopen_a_job_once(app: App, storage: Storage, clock: HandClock) -> None:
    f, _, _ = failing(app)
    await app.enqueue([f.job(n) for n in range(20)])
    await drain(app)
    clock.advance(1000)
    one, two = (redriver(app, storage, clock, Redrive(limit=20)) for _ in range(2))
    await asyncio.gather(one.look(), two.look())
    assert {row.reopenings async for row in app.jobs.iterate(task="f")} == {1}


async def test_a_look_is_bounded_and_the_next_one_continues_it(app: App, storage: Storage, clock: HandClock) -> None:
    f, _, _ = failing(app)
    await app.enqueue([f.job(n) for n in range(25)])
    await drain(app)
    clock.advance(1000)
    driver = redriver(app, storage, clock, Redrive(limit=10))
    assert await driver.look() == 10
    for _ in range(6):
        await driver.look()
    assert {row.reopenings async for row in app.jobs.iterate(task="f")} == {1}


async def test_jobs_that_this_worker_cannot_run_are_not_redriven(app: App, storage: Storage, clock: HandClock) -> None:
    f, _, _ = failing(app)
    await f.options(queue="elsewhere").enqueue(1)
    await f.enqueue(2)
    await drain(app)
    clock.advance(1000)
    other = Redriver(Redrive(), WorkerState("w", 1), storage, ["default"], tuple, clock)
    assert await other.look() == 0
    assert await redriver(app, storage, clock, Redrive()).look() == 1


@shows("an idle worker redrives failed jobs")
async def test_an_idle_worker_redrives(app: App, clock: HandClock, told: Told) -> None:
    f, _, broken = failing(app)
    job = await f.enqueue(7)
    async with work(app, redrive=Redrive(backoff=60, every=0.01)):
        await told.until("failed")
        broken[0] = False
        clock.advance(61)
        await told.until("succeeded")
    assert await job.result(timeout=0) == 7


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"max_times": 0}, {"backoff": 0}, {"every": -1}, {"limit": True}, {"longest": "x"}]
)
def test_an_invalid_redrive_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="redrive"):
        Redrive(**wrong)


async def test_a_worker_refuses_an_invalid_redrive(app: App) -> None:
    with pytest.raises(BadOption, match="redrive"):
        work(app, redrive=5)
    with pytest.raises(BadOption, match="backlog_after"):
        work(app, backlog_after=0)


@shows("a busy worker does not redrive")
async def test_a_busy_worker_does_not_redrive(app: App, spy: Spy, clock: HandClock, told: Told) -> None:
    f, _, broken = failing(app)
    busy, go = asyncio.Event(), asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        busy.set()
        await go.wait()

    job = await f.enqueue(7)
    async with work(app, redrive=Redrive(backoff=60, every=0.001)) as worker:
        await told.until("failed")
        await long.enqueue()
        await busy.wait()
        broken[0] = False
        clock.advance(61)
        assert worker._core.session is not None
        turns, enough, finds = list[str](), asyncio.Event(), spy.calls["find"]

        def turned(loop: str) -> None:
            turns.append(loop)
            if len(turns) == 5:
                enough.set()

        rule, slots = Redrive(backoff=60, every=0.001), worker._core.session.state
        beside = Redriver(rule, slots, spy, ["default"], lambda: app.tasks, clock, turned)
        # the same as the worker's own loop, but this one reports each turn
        looping = asyncio.ensure_future(beside.run())
        async with asyncio.timeout(30):
            await enough.wait()
        looping.cancel()
        assert spy.calls["find"] == finds  # neither loop has read any rows
        assert (await app.jobs.get(job)).state is State.FAILED
        go.set()
        await told.until("succeeded", 2)
    assert await job.result(timeout=0) == 7
