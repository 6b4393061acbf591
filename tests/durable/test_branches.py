"""The order of steps in branches: a branch begins where its task was created."""

from __future__ import annotations

import asyncio

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from treadle import App, current
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

pytestmark = pytest.mark.usefixtures("tasks")


@shows("a branch begins where its task was created, however late it takes its first step")
async def test_a_task_begins_where_it_was_created(app: App, clock: HandClock, ledger: Ledger) -> None:
    """In the first run its step follows one of the function, in the second one it comes first."""
    runs: list[None] = []

    @app.task
    async def boss() -> str:
        here, may_begin = current(), asyncio.Event()
        runs.append(None)
        if len(runs) > 1:
            may_begin.set()

        async def branch() -> str:
            await may_begin.wait()
            return str(await here.step("branch", ledger.do, "branch"))

        await here.step("first", ledger.do, "first")
        task = asyncio.create_task(branch())
        await asyncio.sleep(0)
        await here.step("second", ledger.do, "second")
        may_begin.set()
        await task
        await here.sleep(60)
        return await task

    job = await boss.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "branch 1"
    assert len(runs) == 2


async def test_branches_that_begin_with_a_step_of_the_function_have_no_order(app: App, ledger: Ledger) -> None:
    """The first run stores the step of one branch, and the other one comes first in the next run."""

    @app.task(retry=AGAIN)
    async def boss() -> list[str]:
        async def branch(name: str) -> str:
            return str(await current().step(name, ledger.do, name))

        async def branches() -> list[str]:
            return await asyncio.gather(branch("a"), branch("b"))

        return await current().step("outer", branches)

    ledger.fail["a"] = 2
    job = await boss.enqueue()
    await drain(app)
    assert await job.result(0) == ["a 3", "b 1"]


async def test_a_name_that_the_function_takes_after_the_branch_began_has_no_order(app: App, ledger: Ledger) -> None:
    @app.task
    async def boss() -> str:
        here, may_begin = current(), asyncio.Event()

        async def branch() -> str:
            await may_begin.wait()
            return str(await here.step("same", ledger.do, "branch"))

        task = asyncio.create_task(branch())
        await here.step("same", ledger.do, "function")
        may_begin.set()
        return await task

    job = await boss.enqueue()
    await drain(app)
    assert "is taken in two branches" in await error_of(app, job)


async def test_a_name_that_the_function_took_before_the_branch_began_is_in_order(app: App, ledger: Ledger) -> None:
    @app.task
    async def boss() -> list[str]:
        here = current()

        async def branch() -> str:
            return str(await here.step("same", ledger.do, "branch"))

        first = await here.step("same", ledger.do, "function")
        return [first, await asyncio.create_task(branch())]

    job = await boss.enqueue()
    await drain(app)
    assert await job.result(0) == ["function 1", "branch 1"]
