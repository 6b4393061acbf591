"""`@app.lifespan`: entered before the first claim, left after the last run, once for all workers of an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.kit import Told, nothing_left
from treadle import App, BadOption, LifespanFailed, Retry, State, Worker, current, current_batch
from treadle.errors import NotRunning
from treadle.resources import hosted, life
from treadle_testkit.shows import shows


@pytest.fixture
async def plain() -> AsyncIterator[App]:
    async with App("memory://", retry=Retry(attempts=1)) as made:
        yield made


@shows("the lifespan is entered before the first claim and left after the last run, also when a stop hands jobs back")
async def test_the_lifespan_surrounds_all_claims_and_runs(app: App) -> None:
    happened: list[str] = []
    begun = asyncio.Event()

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, int]]:
        happened.append("entered")
        await asyncio.sleep(0)
        yield {"pool": 1}
        happened.append("left")

    @app.task
    async def use() -> int:
        happened.append("ran")
        return int(current().state["pool"])

    @app.task
    def use_in_a_thread() -> int:
        return resources.state["pool"]

    @app.task
    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("stopped")

    jobs = [await use.enqueue(), await use_in_a_thread.enqueue()]
    before = asyncio.all_tasks()
    worker = Worker(app)
    await worker.start()
    assert [await job.result(60) for job in jobs] == [1, 1]
    waits = await long.enqueue()
    await begun.wait()
    await worker.stop(0)
    assert happened == ["entered", "ran", "stopped", "left"]
    assert (await app.jobs.get(waits)).state is State.READY
    await nothing_left(before)


async def test_workers_of_one_loop_share_a_lifespan(plain: App) -> None:
    happened: list[str] = []

    @plain.lifespan
    async def resources(app: App) -> AsyncIterator[App]:
        happened.append("entered")
        yield app
        happened.append("left")

    @plain.batch(size=2, max_wait=0)
    async def both(items: list[int]) -> list[bool]:
        return [current_batch()[0].state is plain for _ in items]

    first, second = Worker(plain), Worker(plain)
    await asyncio.gather(first.start(), second.start())
    await first.stop()
    assert await (await both.enqueue(1)).result(60)
    assert happened == ["entered"]
    await second.stop()
    assert happened == ["entered", "left"]


async def test_a_worker_without_tasks_opens_nothing(plain: App) -> None:
    """Such as the one in `treadle server`, which only does maintenance."""

    @plain.lifespan
    async def resources() -> AsyncIterator[None]:
        raise AssertionError("entered")
        yield

    @plain.task
    async def use() -> None: ...

    async with Worker(plain, tasks=()):
        pass


async def test_two_loops_have_one_each(tmp_path: Any) -> None:
    app, loops = App(f"sqlite:///{tmp_path}/jobs.db"), list[asyncio.AbstractEventLoop]()

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        loops.append(asyncio.get_running_loop())
        yield

    async def run() -> None:
        async with Worker(app):
            pass

    await asyncio.to_thread(asyncio.run, run())
    async with app, Worker(app):
        await asyncio.to_thread(asyncio.run, run())
    assert len(loops) == len(set(loops)) == 3


@shows("a lifespan that fails ends the worker with the reason, before it claims a job")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("raises", r"failed before its yield: OSError: no database \(.*test_lifespan.py, line \d+\)"),
        ("never", "ended without a yield"),
        ("cancels itself", "cancelled itself"),
    ],
)
async def test_a_lifespan_that_fails_ends_the_worker_before_a_claim(plain: App, wrong: str, words: str) -> None:
    fails = True

    @plain.lifespan
    async def resources() -> AsyncIterator[int]:
        if fails and wrong == "raises":
            raise OSError("no database")
        if fails and wrong == "cancels itself":
            raise asyncio.CancelledError
        if not fails:
            yield 1

    @plain.task
    async def use() -> int:
        return resources.state

    job, before = await use.enqueue(), asyncio.all_tasks()
    with pytest.raises(LifespanFailed, match=words) as found:
        async with Worker(plain):
            pass
    assert "resources" in str(found.value)
    with pytest.raises(LifespanFailed, match=words):
        await Worker(plain).run()
    await nothing_left(before)
    assert (await plain.jobs.get(job)).state is State.READY
    fails = False
    async with Worker(plain):
        assert await job.result(60) == 1


async def test_a_start_that_is_cancelled(plain: App) -> None:
    entering, closed = asyncio.Event(), list[str]()

    @plain.lifespan
    async def resources() -> AsyncIterator[None]:
        try:
            entering.set()
            await asyncio.Event().wait()
            yield
        finally:
            closed.append("closed")

    before = asyncio.all_tasks()
    starts = [asyncio.create_task(Worker(plain).start()) for _ in range(2)]
    await entering.wait()
    starts[0].cancel()
    await asyncio.wait([starts[0]])
    assert not closed  # the other one waits for it
    starts[1].cancel()
    await asyncio.wait(starts)
    assert closed == ["closed"]
    await nothing_left(before)


async def test_a_slow_start_is_logged(
    plain: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(life, "SLOW", 0.0)
    logged, go_on = asyncio.Event(), asyncio.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is not ready" in record.getMessage():
                logged.set()
                go_on.set()

    @plain.lifespan
    async def resources() -> AsyncIterator[None]:
        await go_on.wait()
        yield

    handler = Seen()
    logging.getLogger("treadle").addHandler(handler)
    try:
        async with Worker(plain):
            assert logged.is_set()
    finally:
        logging.getLogger("treadle").removeHandler(handler)


@shows("an error behind the lifespan's yield is logged and hides no result")
@pytest.mark.parametrize("wrong", ["raises", "twice", "hangs"])
async def test_a_failed_end(
    plain: App, wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(plain)
    if wrong == "hangs":
        monkeypatch.setattr(life, "LEAVING", 0.0)
        monkeypatch.setattr(hosted, "CANCELLED", 0.0)

    @plain.lifespan
    async def resources() -> AsyncIterator[int]:
        yield 7
        if wrong == "raises":
            raise OSError("connection lost")
        if wrong == "twice":
            yield 8
        await asyncio.Event().wait()

    @plain.task
    async def use() -> int:
        return resources.state

    job, before = await use.enqueue(), asyncio.all_tasks()
    async with Worker(plain):
        await job.result(60)
    await nothing_left(before)
    assert await job.result(60) == 7
    words = {"raises": "OSError: connection lost", "twice": "yields a second time", "hangs": "did not end"}[wrong]
    assert any(words in message for message in caplog.messages)
    assert any(words in str(event.error) for event in told.of("worker.error"))


async def test_a_second_signal_ends_a_lifespan_that_hangs(plain: App) -> None:
    leaving = asyncio.Event()

    @plain.lifespan
    async def resources() -> AsyncIterator[None]:
        yield
        leaving.set()
        await asyncio.Event().wait()

    worker, before = Worker(plain), asyncio.all_tasks()
    await worker.start()
    session = worker._core.session
    assert session is not None
    stop = asyncio.create_task(worker.stop())
    await leaving.wait()
    session.hurry.set()  # as `Worker.run` does at the second signal
    await stop
    await nothing_left(before)


@shows("a task group of the lifespan that fails while jobs run stops the worker, with the reason")
@pytest.mark.parametrize("swallows", [False, True])
async def test_a_lifespan_that_fails_while_jobs_run_stops_the_worker(plain: App, swallows: bool) -> None:
    told, breaks = Told(plain), asyncio.Event()

    async def watch() -> None:
        await breaks.wait()
        raise OSError("subscription lost")

    @plain.lifespan
    async def resources() -> AsyncIterator[int]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                yield 1
        except* OSError:
            if not swallows:
                raise

    @plain.task
    async def use() -> int:
        return resources.state

    before, running = asyncio.all_tasks(), asyncio.create_task(Worker(plain).run())
    await (await use.enqueue()).result(60)
    breaks.set()
    with pytest.raises(LifespanFailed, match="while it was in use"):
        await running
    breaks.clear()
    async with Worker(plain) as worker:
        await (await use.enqueue()).result(60)
        breaks.set()
        await told.until("worker.stopped", 2)
        assert not worker.running
    await nothing_left(before)


async def test_a_lost_event_loop_closes_the_lifespan(tmp_path: Any) -> None:
    happened: list[str] = []
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        try:
            yield
        finally:
            happened.append("left")

    async def forgets_to_stop() -> None:
        await Worker(app).start()

    await asyncio.to_thread(asyncio.run, forgets_to_stop())
    assert happened == ["left"]


async def test_context_managers_and_redefinitions(plain: App) -> None:
    def wrong(function: Callable[..., Any], words: str) -> None:
        with pytest.raises(BadOption, match=words):
            plain.lifespan(function)

    async def two(app: App, other: int) -> AsyncIterator[None]:
        yield

    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    wrong(two, r"found .*two\(app.*other")
    wrong(coroutine, "it has no `yield`")
    wrong(generator, "write it as `async def`")
    wrong(print, "expected an async generator function")
    words = r"a FastAPI; .* FastAPI\(lifespan=lifespan\(app\)\)"
    with pytest.raises(BadOption, match=words), TestClient(FastAPI(lifespan=plain.lifespan)):  # type: ignore[arg-type]
        pass

    @plain.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        yield "managed"

    @plain.task
    async def use() -> str:
        return resources.state

    wrong(two_yields, "has the lifespan .*resources already")
    with pytest.raises(NotRunning):
        _ = resources.state
    async with asynccontextmanager(resources)() as value:
        assert value == "managed"
    async with Worker(plain):
        assert await (await use.enqueue()).result(60) == "managed"
    other = App("memory://")
    other.lifespan(two_yields)
    other.lifespan(two_yields)  # the cell of a notebook runs again


async def two_yields() -> AsyncIterator[None]:
    yield
    yield


async def test_an_app_without_a_lifespan_has_no_state(plain: App) -> None:
    @plain.task
    async def use() -> str:
        with pytest.raises(NotRunning, match=r"declare one with @app\.lifespan"):
            _ = current().state
        return "none"

    async with Worker(plain):
        assert await (await use.enqueue()).result(60) == "none"


async def test_inline_jobs_have_the_state_too(plain: App) -> None:
    happened: list[str] = []

    @plain.lifespan
    async def resources() -> AsyncIterator[int]:
        happened.append("entered")
        if len(happened) == 1:
            raise OSError("not yet")
        yield 3
        happened.append("left")

    @plain.task(inline=True)
    async def use() -> int:
        return resources.state

    first = await use.enqueue()  # its lifespan fails, so the job waits for a worker
    assert await (await use.enqueue()).result(60) == 3
    async with Worker(plain):
        assert await first.result(60) == 3
    await plain.close()
    assert happened == ["entered", "entered", "left"]


@shows("tests enter the lifespan with their first drain and leave it at their end")
def test_a_test_enters_the_lifespan_with_its_first_drain() -> None:
    app, happened = App("memory://"), list[str]()

    @app.lifespan
    async def resources() -> AsyncIterator[int]:
        happened.append("entered")
        yield 5
        happened.append("left")
        raise OSError("closing failed")

    @app.task
    def use() -> int:
        happened.append(threading.current_thread().name)
        return resources.state

    def the_test() -> None:
        with app.sync.testing() as t:
            app.sync.enqueue(use.job())
            assert happened == []
            assert t.drain() == 1
            app.sync.enqueue(use.job())
            assert t.drain() == 1
            assert happened == ["entered", "MainThread", "MainThread"]

    with pytest.raises(LifespanFailed, match="closing failed"):
        the_test()
    assert happened[3:] == ["left"]
    with app.sync.testing():
        pass  # a test without a drain opens nothing
    assert len(happened) == 4
