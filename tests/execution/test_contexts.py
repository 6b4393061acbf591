"""A job runs in a context of its own: context variables of the enqueuing code, or of another job, do not reach it."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import LASTING, a_url
from tests.kit import work
from treadle import App, BadStep, Worker, current

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
PROGRAM: ContextVar[str] = ContextVar("program", default="unset")

Seen = tuple[str, int, str]
EXPECTED: Seen = ("nobody", 28, "no step")


def seen() -> Seen:
    try:
        key = current().step_key()
    except BadStep:
        key = "no step"
    return TENANT.get(), decimal.getcontext().prec, key


class Tasks:
    """One task for each way to run a function."""

    def __init__(self, app: App) -> None:
        @app.task(name="coroutine")
        async def coroutine() -> Seen:
            return seen()

        @app.task(name="thread")
        def thread() -> Seen:
            return seen()

        @app.task(name="inline", inline=True)
        async def inline() -> Seen:
            return seen()

        @app.batch(name="batch", max_wait=0)
        async def batch(items: list[int]) -> list[Seen]:
            return [(TENANT.get(), decimal.getcontext().prec, "no step") for _ in items]

        self.all: tuple[Callable[[], Awaitable[Any]], ...] = (
            coroutine.enqueue,
            thread.enqueue,
            inline.enqueue,
            lambda: batch.enqueue(1),
        )

        @app.task(name="asks")
        async def asks() -> list[Seen]:
            async def ask() -> list[Seen]:
                return [tuple(await (await send()).result(30)) for send in self.all]

            return await current().step("ask", ask)

        self.asks = asks


async def as_a_tenant(number: int, each: Callable[[], Awaitable[Any]]) -> Any:
    """Handle a request like a web server: in a task with context variables of its own."""

    async def request() -> Any:
        TENANT.set(f"tenant-{number}")
        decimal.setcontext(decimal.Context(prec=number + 3))
        return await each()

    return await asyncio.create_task(request())


async def test_no_job_sees_what_the_enqueuing_code_has_set(app: App) -> None:
    tasks = Tasks(app)
    async with work(app):
        # each finds the worker idle, and reaches it by hand-off or by a claim
        for number, send in enumerate(tasks.all * 3):
            job = await as_a_tenant(number, send)
            assert tuple(await job.result(30)) == EXPECTED
        jobs = [await as_a_tenant(number, send) for number, send in enumerate(tasks.all * 5)]
        assert [tuple(await job.result(30)) for job in jobs] == [EXPECTED] * len(jobs)


async def test_no_job_sees_the_step_of_the_job_that_enqueued_it(app: App) -> None:
    tasks = Tasks(app)
    async with work(app):
        job = await as_a_tenant(9, tasks.asks.enqueue)
        assert [tuple(each) for each in await job.result(30)] == [EXPECTED] * len(tasks.all)


async def test_jobs_see_what_was_set_before_their_worker_started(app: App) -> None:
    @app.task(name="reads")
    async def reads() -> str:
        return PROGRAM.get()

    @app.batch(name="batch", max_wait=0)
    async def batch(items: list[int]) -> list[str]:
        return [PROGRAM.get() for _ in items]

    PROGRAM.set("the program's")
    async with work(app):
        for send in (reads.enqueue, lambda: batch.enqueue(1)):
            assert await (await as_a_tenant(1, send)).result(30) == "the program's"


@pytest.mark.parametrize("kind", LASTING)
async def test_a_job_handed_off_by_another_process_inherits_no_context(kind: str, tmp_path: Path) -> None:
    """The task that listens for the other process was started in the context of a request."""
    with a_url(kind, tmp_path) as url:
        async with App(url) as here, App(url) as there:
            tasks, others = Tasks(here), Tasks(there)
            worker = Worker(here)
            await worker.start()
            try:
                # the first caller that waits for an ending registers the listener
                job = await as_a_tenant(1, tasks.all[0])
                await as_a_tenant(2, lambda: job.result(30))
                for number, send in enumerate((others.all[0], others.all[1], others.all[3]) * 2):
                    job = await as_a_tenant(number, send)
                    assert tuple(await job.result(30)) == EXPECTED
            finally:
                await worker.stop()
