"""Every way to send a job passes through `Middleware.enqueue`: a middleware for tenants reaches each job.

A job without its tenant would be a hole in the separation of tenants, so each way is listed here by name.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures import LASTING
from treadle import App, BatchTask, Flow, JobSpec, Middleware, Retry, Task, chain, current, flow, gather
from treadle.contrib.pipeline import Pipeline, Step
from treadle.execution.context import Context
from treadle.execution.middleware import Run, Send, Specs
from treadle.server import Settings, make_site
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

tenant: ContextVar[str] = ContextVar("tenant", default="system")


class Tenancy(Middleware):
    """As in docs/guides/middleware.md."""

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        return await proceed([spec.with_headers({"tenant": tenant.get()}) for spec in specs])

    async def run(self, context: Context, proceed: Run) -> Any:
        tenant.set(context.headers["tenant"])
        return await proceed()

    @contextmanager
    def call(self, contexts: Sequence[Context]) -> Iterator[None]:
        [name] = {context.headers["tenant"] for context in contexts}
        tenant.set(name)
        yield


class Tasks:
    """The tasks whose jobs are looked at."""

    def __init__(self, app: App, clock: HandClock) -> None:
        self.app, self.clock = app, clock

        @app.task(name="leaf")
        async def leaf(*_: Any) -> str:
            assert current().headers["tenant"] == tenant.get()
            return tenant.get()

        @app.batch(name="many", max_wait=0.001)
        async def many(items: list[int]) -> list[None]:
            await leaf.enqueue()
            return [None] * len(items)

        self.leaf: Task[..., Any, Any] = leaf
        self.many: BatchTask[..., Any] = many

    @property
    def mine(self) -> JobSpec[Any]:
        """A job with a header of its caller."""
        return self.leaf.options(headers={"mine": "1"}).job()

    async def run(self, function: Callable[..., Any], name: str = "parent", **options: Any) -> None:
        """Run this function as a task, and all that follows from it."""
        await self.app.task(name=name, **options)(function).enqueue()
        await drain(self.app, concurrency=4)


Way = Callable[[Tasks], Awaitable[object]]
WAYS: dict[str, Way] = {}


def way(send: Way) -> Way:
    WAYS[send.__name__] = send
    return send


@way
async def task_enqueue(t: Tasks) -> None:
    await t.leaf.enqueue()
    await t.leaf.options(headers={"mine": "1", "tenant": "forged"}).enqueue()


@way
async def app_enqueue_of_many(t: Tasks) -> None:
    await t.app.enqueue([t.leaf.job(), t.mine])


@way
async def app_enqueue_with_after(t: Tasks) -> None:
    first = await t.app.enqueue(t.mine)
    await t.app.enqueue(t.leaf.job(), after=[first])


@way
async def stub(t: Tasks) -> None:
    await t.app.stub("leaf").enqueue()
    await t.app.enqueue(t.mine)


@way
async def flows(t: Tasks) -> None:
    await flow(t.mine, flow(t.leaf.job(), t.leaf.job())).then(t.leaf.job()).enqueue()


@way
async def chains(t: Tasks) -> None:
    await chain(t.mine, t.leaf, flow(t.leaf.job(), t.leaf.job())).enqueue()


@way
async def gathers(t: Tasks) -> None:
    await gather(t.mine, t.leaf.job()).into(t.leaf).enqueue()


@way
async def batches(t: Tasks) -> None:
    """The items, and a job that their function enqueues."""
    await t.app.enqueue([t.many.job(1), t.many.options(headers={"mine": "1"}).job(2)])
    await drain(t.app, concurrency=4)


@way
async def inline(t: Tasks) -> None:
    job = await t.leaf.options(inline=True, headers={"mine": "1"}).enqueue()
    assert await job.result(30) == "42"


@way
async def returned(t: Tasks) -> None:
    async def parent() -> JobSpec[Any]:
        return t.mine

    await t.run(parent)


@way
async def returned_by_a_thread(t: Tasks) -> None:
    def parent() -> Flow[Any]:
        return flow(t.mine, flow(t.leaf.job(), t.leaf.job())).then(t.leaf.job())

    await t.run(parent)


@way
async def enqueued_inside(t: Tasks) -> None:
    async def parent() -> None:
        await t.app.enqueue([t.mine, t.leaf.job()])

    await t.run(parent)


@way
async def enqueued_in_a_step(t: Tasks) -> None:
    async def send() -> None:
        await t.app.enqueue([t.mine, t.leaf.job()])

    async def parent() -> None:
        await current().step("send", send)

    await t.run(parent)


@way
async def retried(t: Tasks) -> None:
    """Reopening by hand, and a redrive, keep the row with its headers."""

    async def dead() -> None:
        raise ValueError("no")

    task = t.app.task(name="parent", retry=Retry(attempts=1))(dead)
    job = await task.options(headers={"mine": "1"}).enqueue()
    await drain(t.app)
    await t.app.jobs.retry(job)
    await drain(t.app)
    assert (await t.app.jobs.get(job)).reopenings == 1


@way
async def pipelines(t: Tasks) -> None:
    p = Pipeline("p", [Step("one", children=["a", "b"]), Step("two")], app=t.app)

    @p.handler("one:a")
    @p.handler("one:b")
    async def child() -> None: ...

    @p.handler("two")
    async def two() -> None:
        await t.app.enqueue(t.mine)

    p.complete()
    run = await p.start(user=1)
    await drain(t.app, concurrency=4)
    await run.result(timeout=30)


@way
async def over_http(t: Tasks) -> None:
    """`POST /v1/jobs` passes through the middleware of the app that the server serves."""
    transport = httpx.ASGITransport(make_site(t.app, Settings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        answer = await client.post("/v1/jobs", json={"task": "leaf", "headers": {"mine": "1"}})
        assert answer.status_code == 201, answer.text


@way
async def threads_of_sync_code(t: Tasks) -> None:
    def view() -> None:
        t.app.sync.enqueue([t.leaf.job(), t.mine])

    await asyncio.to_thread(view)


async def headers_of(app: App) -> list[tuple[str, dict[str, str]]]:
    rows = [row async for row in app.jobs.iterate()]
    return [(row.job.task, dict(row.job.headers)) for row in rows if row.job.task]


# The layers do not depend on the storage. Those that follow from an outcome or a step are stored by other calls.
DIFFERENT = ("flows", "returned_by_a_thread", "enqueued_in_a_step", "pipelines")
EACH = [("memory", name) for name in WAYS] + [(kind, name) for kind in LASTING for name in DIFFERENT]


@pytest.mark.parametrize(("storage", "name"), EACH, indirect=["storage"])
@shows("every job passes through `Middleware.enqueue`, however it is sent, on every storage")
async def test_every_job_has_the_headers_of_its_tenant(app: App, clock: HandClock, name: str) -> None:
    app.middleware(Tenancy)
    tasks = Tasks(app, clock)
    token = tenant.set("42")
    try:
        await WAYS[name](tasks)
    finally:
        tenant.reset(token)
    found = await headers_of(app)
    assert found
    assert [(task, headers) for task, headers in found if headers.get("tenant") != "42"] == []
    assert any(headers.get("mine") == "1" for _, headers in found), "a header of the caller is gone"
    await drain(app, concurrency=4)
    failed = [(row.job.task, row.error) async for row in app.jobs.iterate(state="failed")]
    assert [task for task, error in failed if "ValueError: no" not in str(error)] == [], failed


async def test_the_jobs_of_schedules_have_no_caller(app: App, clock: HandClock) -> None:
    """Ticks are enqueued by a worker, outside of any run; their headers come from the middleware alone."""
    app.middleware(Tenancy)

    @app.every(60, name="minutely")
    @app.task(name="tick")
    async def tick() -> JobSpec[str]:
        return leaf.job()

    @app.task(name="leaf")
    async def leaf() -> str:
        return tenant.get()

    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.schedules.trigger("minutely")
    await drain(app)
    found = [headers for task, headers in await headers_of(app) if task in ("tick", "leaf")]
    assert len(found) >= 4
    assert {headers["tenant"] for headers in found} == {"system"}


async def test_within_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with App(f"sqlite:///{path}?shared=true") as app:
        app.middleware(Tenancy)
        tasks = Tasks(app, HandClock())
        with closing(sqlite3.connect(path)) as db:
            tenant.set("42")
            await app.enqueue([flow(tasks.mine, tasks.leaf.job()).job()], within=db)
            await tasks.leaf.options(within=db, headers={"mine": "1"}).enqueue()
            db.commit()
        found = await headers_of(app)
        assert len(found) == 4
        assert {headers["tenant"] for _, headers in found} == {"42"}
