"""Middleware around enqueue: it gets every job, however the job is sent, on every storage."""

from __future__ import annotations

from typing import Any

import pytest

from treadle import App, Flow, JobSpec, Middleware, Retry, chain, current, flow, gather
from treadle.execution.middleware import Send, Specs
from treadle.testing import HandClock, drain


class Tenant(Middleware):
    """Adds its header, and notes the jobs that `proceed` returned."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        jobs = await proceed([spec.with_headers({"tenant": "42"}) for spec in specs])
        self.sent += [job.task for job in jobs]
        return jobs


@pytest.fixture
def tenant(app: App) -> Tenant:
    layer = Tenant()
    app.middleware(layer)
    return layer


async def headers_of(app: App) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    async for row in app.jobs.iterate():
        if not row.job.task.startswith("treadle.schedule"):
            found.setdefault(row.job.task, []).append(dict(row.job.headers))
    return found


async def test_every_job_of_a_composition_has_the_headers(app: App, tenant: Tenant) -> None:
    """Flows, chains and gathers, also nested; headers given by the caller stay."""

    @app.task(name="t")
    async def t(*_: Any) -> None: ...

    mine = t.options(headers={"mine": "1", "tenant": "0"})
    await app.enqueue([t.job(), mine.job()])
    await flow(t.job(), flow(t.job(), t.job())).then(t.job()).enqueue()
    await chain(t.job(), t, flow(t.job(), t.job())).enqueue()
    await gather(t.job(), t.job()).into(t).enqueue()
    for task, headers in (await headers_of(app)).items():
        assert {each.get("tenant") for each in headers} == {"42"}, task
    assert {"mine": "1", "tenant": "42"} in (await headers_of(app))["t"]


async def test_the_jobs_a_run_returns_pass_through(app: App, tenant: Tenant) -> None:
    """The middleware runs in the worker, in the context of the run; the jobs are stored with its outcome."""

    @app.task(name="child")
    async def child() -> str:
        return current().headers["tenant"]

    @app.task(name="parent", reduce="list")
    async def parent() -> Flow[str]:
        return flow(child.job(), child.options(headers={"mine": "1"}).job())

    @app.task(name="next")
    async def continues() -> JobSpec[str]:
        return child.job()

    jobs = [await parent.enqueue(), await continues.enqueue()]
    await drain(app)
    assert [await job.workflow.result(0) for job in jobs] == [["42", "42"], "42"]
    assert tenant.sent == ["parent", "next", "child", "child", "child"]
    assert {"mine": "1", "tenant": "42"} in (await headers_of(app))["child"]


async def test_a_middleware_that_raises_fails_the_run_whose_jobs_it_refuses(app: App) -> None:
    class Refuses(Middleware):
        async def enqueue(self, specs: Specs, proceed: Send) -> Any:
            if any(spec.new.task == "child" for spec in specs):
                raise PermissionError("no child here")
            return await proceed(specs)

    app.middleware(Refuses())

    @app.task(name="child")
    async def child() -> None: ...

    @app.task(name="parent", retry=Retry(attempts=1))
    async def parent() -> JobSpec[None]:
        return child.job()

    job = await parent.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, "no child here" in (row.error or "")) == ("failed", True)
    assert "child" not in await headers_of(app)


async def test_the_jobs_of_a_schedule_pass_through(app: App, tenant: Tenant, clock: HandClock) -> None:
    """The jobs that its ticks enqueue, and those of a trigger."""

    @app.every(60, name="minutely")
    @app.task(name="tick")
    async def tick() -> None: ...

    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.schedules.trigger("minutely")
    headers = (await headers_of(app))["tick"]
    assert len(headers) >= 2
    assert {each.get("tenant") for each in headers} == {"42"}
    assert {each.get("treadle-schedule") for each in headers} == {"minutely"}


def test_changed_headers_are_those_of_all_rows(app: App) -> None:
    """`changed(headers=)` replaces the headers of each job of a flow."""

    @app.task(name="t")
    async def t() -> None: ...

    spec = flow(t.job(), t.options(headers={"mine": "1"}).job()).job().changed(headers=(("a", "b"),))
    assert {new.headers for new in (*spec.others, spec.new)} == {(("a", "b"),)}
