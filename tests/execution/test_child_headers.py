"""`Context.child_headers`: headers that a middleware gives to the jobs a run makes."""

from __future__ import annotations

from typing import Any

import pytest

from treadle import App, Flow, JobSpec, Middleware, chain, current, flow
from treadle.execution.context import Context
from treadle.execution.middleware import Run
from treadle.testing import drain
from treadle_testkit.shows import shows

SENT = {"trace": "of the sender", "tenant": "42"}  # headers of the first job


class Trace(Middleware):
    """Each run gets a trace of its own."""

    async def run(self, context: Context, proceed: Run) -> Any:
        context.child_headers["trace"] = f"of {context.task}"
        return await proceed()


@pytest.fixture
def traced(app: App) -> App:
    app.middleware(Trace)

    @app.task(name="leaf")
    async def leaf(*_: Any) -> None: ...

    return app


async def headers_of(app: App, task: str) -> list[dict[str, str]]:
    return [dict(row.job.headers) async for row in app.jobs.iterate(task=task)]


@shows("`child_headers` of a run replace the headers that the jobs it returns inherit")
async def test_jobs_that_a_run_returns(traced: App) -> None:
    """All jobs of a composition, also what follows it; a header of the new job itself stays."""
    leaf = traced.find_task("leaf")
    assert leaf is not None
    mine: Any = leaf.options(headers={"trace": "mine"})
    spec: Any = leaf

    @traced.task(name="parent")
    async def parent(which: int) -> JobSpec[Any] | Flow[Any]:
        each: list[Any] = [
            spec.job(),
            flow(spec.job(), spec.job()).then(spec.job()),
            chain(spec.job(), spec.job()),
            mine.job(),
        ]
        found: JobSpec[Any] | Flow[Any] = each[which]
        return found

    for which in range(4):
        await parent.options(headers=SENT).enqueue(which)
        await drain(traced)
    found = await headers_of(traced, "leaf")
    assert len(found) == 1 + 3 + 2 + 1
    assert [each for each in found if each != SENT | {"trace": "of parent"}] == [SENT | {"trace": "mine"}]
    assert {each["trace"] for each in await headers_of(traced, "parent")} == {"of the sender"}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_jobs_that_a_run_enqueues(traced: App, kind: str) -> None:
    """They inherit nothing else. Jobs that are enqueued outside have no such headers."""
    leaf: Any = traced.find_task("leaf")

    @traced.task(name="parent")
    async def parent() -> None:
        await leaf.enqueue()
        await traced.enqueue([leaf.options(headers={"trace": "mine"}).job()])

    @traced.task(name="plain")
    def plain() -> None:
        traced.sync.enqueue(leaf.job())
        traced.sync.enqueue(leaf.options(headers={"trace": "mine"}).job())

    await leaf.enqueue()
    name, task = ("parent", parent) if kind == "async" else ("plain", plain)
    await task.options(headers=SENT).enqueue()
    await drain(traced)
    found = sorted(await headers_of(traced, "leaf"), key=str)
    assert found == [{"trace": "mine"}, {"trace": f"of {name}"}, {}]


async def test_each_run_starts_without_child_headers(traced: App) -> None:
    @traced.task(name="twice")
    async def twice() -> dict[str, str]:
        before = dict(current().child_headers)
        current().child_headers["more"] = "1"
        return before

    jobs = [await twice.enqueue(), await twice.enqueue()]
    await drain(traced)
    assert [await job.result(0) for job in jobs] == [{"trace": "of twice"}] * 2
