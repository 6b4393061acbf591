"""`Middleware.step`: a context manager around the function of each durable step."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from treadle import App, Middleware, Retry, current
from treadle.execution.context import Context
from treadle.testing import drain
from treadle_testkit.shows import shows

step_here: ContextVar[str] = ContextVar("step_here", default="none")


class Steps(Middleware):
    """Notes each step: its task and name, the thread, and how it ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.threads: set[int] = set()

    @contextmanager
    def step(self, context: Context, name: str) -> Iterator[None]:
        self.threads.add(threading.get_ident())
        token = step_here.set(name)
        try:
            yield
        except Exception as error:
            self.seen.append((context.task, name, type(error).__name__))
            raise
        else:
            self.seen.append((context.task, name, "done"))
        finally:
            step_here.reset(token)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://", retry=Retry(attempts=2, base=0, jitter=0)) as app:
        yield app


def plain() -> str:
    return step_here.get()


async def awaited() -> str:
    return step_here.get()


@shows("Middleware surrounds the function of each durable step, and no step that was stored before")
async def test_the_middleware_surrounds_each_step_function_once(app: App) -> None:
    layer = Steps()
    app.middleware(layer)
    runs = 0

    @app.task(name="order")
    async def order() -> list[str]:
        nonlocal runs
        runs += 1
        step = current().step
        found = [await step("a", awaited), await step("b", plain), await step("b", awaited)]
        if runs == 1:
            raise ValueError("after three steps")
        return found

    job = await order.enqueue()
    await drain(app)
    assert await job.result() == ["a", "b", "b#2"]
    assert layer.seen == [("order", "a", "done"), ("order", "b", "done"), ("order", "b#2", "done")]


async def test_the_middleware_of_a_step_in_a_thread_is_entered_there(app: App) -> None:
    layer = Steps()
    app.middleware(layer)

    @app.task
    def order() -> tuple[str, int]:
        return current().sync.step("a", plain), threading.get_ident()

    job = await order.enqueue()
    await drain(app)
    name, thread = await job.result()
    assert (name, {thread}) == ("a", layer.threads)


async def test_an_exception_of_middleware_fails_the_step(app: App) -> None:
    """An exception that it suppresses is raised again: the step has no result."""

    class Suppresses(Middleware):
        @contextmanager
        def step(self, context: Context, name: str) -> Iterator[None]:
            if name == "refused":
                raise PermissionError(name)
            try:
                yield
            except Exception:
                return

    app.middleware(Suppresses)

    @app.task(name="order")
    async def order() -> list[str]:
        found = list[str]()
        for name in ("refused", "fails"):
            try:
                await current().step(name, fails)
            except Exception as error:
                found.append(type(error).__name__)
        return found

    async def fails() -> Any:
        raise ValueError("in the step")

    job = await order.enqueue()
    await drain(app)
    assert await job.result() == ["PermissionError", "ValueError"]
