"""`Middleware.call`: a context manager around the call of a function, entered where the function runs."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from tests.execution import process_calls
from tests.kit import work
from treadle import App, BadTask, JobFailed, Middleware, Retry
from treadle.execution.context import Context
from treadle.execution.middleware import Run
from treadle_testkit.shows import shows

tenants: ContextVar[str] = ContextVar("tenants", default="none")
here = threading.local()


class Tenant(Middleware):
    """Sets a context variable, and a value of the thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    @contextmanager
    def call(self, contexts: Sequence[Context]) -> Iterator[None]:
        found = tuple(context.headers["tenant"] for context in contexts)
        self.calls.append(found)
        tenants.set(" ".join(found))
        here.tenants = found
        try:
            yield
        finally:
            here.tenants = None


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://", retry=Retry(attempts=1)) as app:
        yield app


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "inside a run middleware"])
async def test_the_middleware_surrounds_the_call_where_the_function_runs(app: App, kind: str, wrapped: bool) -> None:
    """Values of the thread are visible too, which `run` cannot set for a function in a thread."""
    layer = Tenant()
    if wrapped:

        class Passes(Middleware):
            async def run(self, context: Context, proceed: Run) -> Any:
                return await proceed()

        app.middleware(Passes)
    app.middleware(layer)

    def seen() -> tuple[str, Any]:
        return tenants.get(), here.tenants

    async def seen_async() -> tuple[str, Any]:
        return seen()

    task: Any = app.task(seen if kind == "thread" else seen_async)
    async with work(app, concurrency=1):
        jobs = [await task.options(headers={"tenant": name}).enqueue() for name in "ab"]
        assert [await job.result(30) for job in jobs] == [("a", ("a",)), ("b", ("b",))]
    assert layer.calls == [("a",), ("b",)]


@pytest.mark.parametrize("kind", ["async", "thread"])
@shows("`Middleware.call` surrounds the one call of a batch function, with all its jobs")
async def test_a_batch_is_one_call(app: App, kind: str) -> None:
    layer = Tenant()
    app.middleware(layer)

    def seen(items: list[int]) -> list[str]:
        return [tenants.get()] * len(items)

    async def seen_async(items: list[int]) -> list[str]:
        return seen(items)

    task: Any = app.batch(size=2, max_wait=60)(seen if kind == "thread" else seen_async)
    async with work(app):
        jobs = [await task.options(headers={"tenant": name}).enqueue(1) for name in "ab"]
        assert [await job.result(30) for job in jobs] == ["a b", "a b"]
    assert layer.calls == [("a", "b")]


async def test_a_process_enters_the_middleware_of_its_task(caplog: pytest.LogCaptureFixture) -> None:
    """Only if the module of the function declares the task. `child_headers` of the run arrive there, too."""

    class Trace(Middleware):
        async def run(self, context: Context, proceed: Run) -> Any:
            context.child_headers["trace"] = "t1"
            return await proceed()

    app = App("memory://")
    app.middleware(Trace)
    whose = app.task(kind="process", name=process_calls.whose.name)(process_calls.whose.function)
    undeclared = app.task(kind="process")(process_calls.undeclared)
    async with app, work(app):
        job = await whose.options(headers={"tenant": "42"}).enqueue()
        tenant, process, child_headers = await job.result(60)
        assert (tenant, child_headers) == ("42", {"trace": "t1"})
        assert process != os.getpid()
        assert await (await undeclared.options(headers={"tenant": "42"}).enqueue()).result(60) == "none"


@pytest.mark.parametrize("kind", ["async", "thread", "batch"])
@pytest.mark.parametrize("when", ["before", "after", "suppresses"])
async def test_an_exception_of_middleware_fails_the_run(app: App, kind: str, when: str) -> None:
    """An exception that it suppresses is raised all the same, for the function has returned nothing."""

    class Broken(Middleware):
        @contextmanager
        def call(self, contexts: Sequence[Context]) -> Iterator[None]:
            if when == "before":
                raise LookupError("before")
            try:
                yield
            except ValueError:
                return
            raise LookupError("after")

    app.middleware(Broken)

    def fails(items: Any) -> list[int]:
        if when == "suppresses":
            raise ValueError("suppresses")
        return [1]

    async def fails_async(items: Any) -> list[int]:
        return fails(items)

    task: Any = app.batch(max_wait=0.001)(fails) if kind == "batch" else None
    task = task or app.task(fails if kind == "thread" else fails_async)
    async with work(app):
        job = await task.enqueue(1)
        with pytest.raises(JobFailed, match=when):
            await job.result(30)


def test_a_generator_function_is_refused(app: App) -> None:
    class Forgot(Middleware):
        def call(self, contexts: Sequence[Context]) -> Iterator[None]:  # type: ignore[override]
            yield

    with pytest.raises(BadTask, match=r"Forgot\.call .* add @contextlib\.contextmanager"):
        app.middleware(Forgot)
