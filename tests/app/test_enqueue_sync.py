"""`enqueue_sync` and `result_sync`: the calls of tasks, flows and jobs in code without an event loop."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit import work
from treadle import App, BadSession, Job, JobFailed, Key, KeyHeld, Retry, UnknownJob, chain, flow
from treadle.errors import BadArgument, EventLoopError


@pytest.fixture(params=["memory://", "sqlite:///{}/jobs.db?synchronous=normal"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(str(request.param).format(tmp_path))

    @app.task(name="double", inline=True, retry=Retry(attempts=1))
    async def double(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is below 0")
        return n * 2

    @app.task(name="later", queue="mail")
    def later(n: int) -> int:
        return n + 1

    @app.batch(name="many", inline=True)
    async def many(items: list[int]) -> list[int]:
        return [item + 10 for item in items]

    yield app
    app.sync.close()


def test_each_form_stores_a_job_and_waits_for_it(plain: App) -> None:
    double, later = plain.tasks["double"], plain.tasks["later"]
    job = double.enqueue_sync(4)
    assert (job.result_sync(timeout=30), job.created, job.ended_sync().state) == (8, True, "succeeded")
    assert plain.tasks["many"].enqueue_sync(1).result_sync(30) == 11
    urgent = later.options(priority=3).enqueue_sync(n=1)
    assert plain.sync.jobs.get(urgent).job.priority == 3
    assert plain.sync.jobs.get(plain.stub("later", priority=2).enqueue_sync(5)).job.priority == 2
    with pytest.raises(TimeoutError, match=r"later .* has not ended"):
        urgent.result_sync(timeout=0)
    assert plain.sync.jobs.handle(job.id).result_sync() == 8


def test_workflows_are_stored_without_a_loop(plain: App) -> None:
    double = plain.tasks["double"]
    worker = work(plain)

    async def leaf(n: int) -> int:
        return n

    task = plain.task(name="leaf")(leaf)
    last, both = chain(task.job(1), double).enqueue_sync(), flow(task.job(1), task.job(2)).enqueue_sync()
    assert both.workflow.progress_sync().done == 0
    with ThreadPoolExecutor(1) as pool:
        plain.sync.call(worker.start())
        assert pool.submit(last.result_sync, 30).result() == 2
        assert both.workflow.result_sync(30) == 2
        plain.sync.call(worker.stop())
    assert both.workflow.progress_sync().done == 3


def test_errors_are_those_of_the_awaited_calls(plain: App) -> None:
    double, later = plain.tasks["double"], plain.tasks["later"]
    with pytest.raises(BadArgument, match="'n'"):
        double.enqueue_sync("one")
    with pytest.raises(JobFailed, match="-1 is below 0"):
        double.enqueue_sync(-1).result_sync(30)
    with pytest.raises(UnknownJob):
        plain.sync.jobs.handle("nobody").result_sync()
    once = later.options(key=Key("k", conflict="raise"))
    once.enqueue_sync(1)
    with pytest.raises(KeyHeld):
        once.enqueue_sync(2)


def handle(app: App) -> Job[Any, Any]:
    return Job("x", "double", app._core.client, None)


BLOCKING: dict[str, Callable[[App], Any]] = {
    "await double.enqueue(...)": lambda app: app.tasks["double"].enqueue_sync(1),
    "await double.options(...).enqueue(...)": lambda app: app.tasks["double"].options(delay=1).enqueue_sync(1),
    "await app.stub('far').enqueue(...)": lambda app: app.stub("far").enqueue_sync(1),
    "await flow(...).enqueue()": lambda app: flow(app.tasks["double"].job(1)).enqueue_sync(),
    "await chain(...).enqueue()": lambda app: chain(app.tasks["double"].job(1)).enqueue_sync(),
    "await job.result(...)": lambda app: handle(app).result_sync(),
    "await job.ended(...)": lambda app: handle(app).ended_sync(),
    "await job.workflow.result(...)": lambda app: handle(app).workflow.result_sync(),
    "await job.workflow.progress()": lambda app: handle(app).workflow.progress_sync(),
}


@pytest.mark.parametrize("instead", BLOCKING)
async def test_on_an_event_loop_the_error_names_the_call_to_await(instead: str) -> None:
    """It would block that loop, whichever loop has the app open."""
    app = App("memory://")

    @app.task(name="double")
    async def double(n: int) -> int:
        return n

    with pytest.raises(EventLoopError, match="would block the event loop") as found:
        BLOCKING[instead](app)
    assert str(found.value).endswith(f"write `{instead}`")


def test_within_stores_the_job_in_the_transaction_of_the_caller(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db?shared=true")
    later = app.task(name="later")(lambda n: n)
    app.sync.call(app.open())
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        lost = later.options(within=connection).enqueue_sync(1)
        connection.rollback()
        kept, whole = (
            later.options(within=connection).enqueue_sync(2),
            flow(later.job(3)).enqueue_sync(within=connection),
        )
    connection.close()
    assert [row.job.id for row in app.sync.jobs.iterate(task="later") if row.job.id == lost.id] == []
    assert app.sync.jobs.get(kept).state == app.sync.jobs.get(app.sync.jobs.list(parent=whole.id).records[0]).state
    app.sync.call(app.release())
    app.sync.close()


def test_within_refuses_a_session_of_an_event_loop(plain: App) -> None:
    kind = type("Connection", (), {"__module__": "aiosqlite.core"})
    with pytest.raises(BadSession, match="belongs to an event loop"):
        plain.tasks["later"].options(within=kind()).enqueue_sync(1)


async def test_threads_of_an_async_program_use_its_loop(app: App) -> None:
    """A `def` endpoint of an ASGI application, and a plain task on a worker."""

    @app.task(name="leaf")
    async def leaf(n: int) -> int:
        return n

    @app.task(name="parent")
    def parent(n: int) -> int:
        return leaf.enqueue_sync(n + 1).result_sync(30)

    async with work(app):
        jobs = await asyncio.gather(*(asyncio.to_thread(parent.enqueue_sync, n) for n in range(5)))
        assert [await job.result(30) for job in jobs] == [1, 2, 3, 4, 5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_stores_jobs_too(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    later = app.task(name="later")(lambda n: n)
    later.enqueue_sync(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            later.enqueue_sync(2)
            app.sync.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(app.sync.jobs.list(task="later").records) == 2
    app.sync.close()
