"""Waits in ways that a later run could not repeat: they are refused, and the error names the cure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from treadle import App, current
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

pytestmark = pytest.mark.usefixtures("tasks")


async def timeout() -> None:
    async with asyncio.timeout(5):
        await current().sleep(60)


async def timeout_in_a_variable() -> None:
    limit = asyncio.timeout(5)
    async with limit:
        await current().sleep(60)


async def timeout_in_a_helper() -> None:
    @asynccontextmanager
    async def limited() -> Any:
        async with asyncio.timeout(5):
            yield

    async with limited():
        await current().sleep(60)


async def timeout_in_a_generator() -> None:
    async def pages() -> AsyncIterator[int]:
        async with asyncio.timeout(5):
            await current().sleep(60)
        yield 1

    async for _ in pages():
        pass


async def time_of_anyio() -> None:
    with anyio.fail_after(5):
        await current().sleep(60)


async def scope_of_anyio() -> None:
    with anyio.move_on_after(5):
        await current().sleep(60)


async def timeout_around_tasks() -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(current().sleep(60))


async def wait_for() -> None:
    await asyncio.wait_for(current().sleep(60), 5)


async def wait_with_a_timeout() -> None:
    await asyncio.wait([asyncio.ensure_future(current().sleep(60))], timeout=5)


async def wait_for_the_first() -> None:
    here = current()
    await asyncio.wait(
        [asyncio.ensure_future(here.sleep(60)), asyncio.ensure_future(here.sleep(90))],
        return_when=asyncio.FIRST_COMPLETED,
    )


async def take_as_completed() -> None:
    for done in asyncio.as_completed([current().sleep(60), current().sleep(90)]):
        await done


REFUSED = (
    (timeout, "current().timeout"),
    (timeout_in_a_variable, "current().timeout"),
    (timeout_in_a_helper, "current().timeout"),
    (timeout_in_a_generator, "current().timeout"),
    (timeout_around_tasks, "current().timeout"),
    (time_of_anyio, "current().timeout"),
    (scope_of_anyio, "current().timeout"),
    (wait_for, "current().timeout"),
    (wait_with_a_timeout, "current().timeout"),
    (wait_for_the_first, "current().first"),
    (take_as_completed, "as_completed"),
)


@shows("asyncio.timeout around a durable wait is refused, and named")
@pytest.mark.parametrize(("function", "cure"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
async def test_programs_whose_path_would_depend_on_the_run_are_refused(app: App, function: Any, cure: str) -> None:
    job = await app.task(name="boss", retry=AGAIN)(function).enqueue()
    await drain(app)
    error = await error_of(app, job)
    assert "BadStep" in error
    assert cure in error
    assert (await app.jobs.get(job)).attempt == 1


class Looped:
    """A thing whose generator refers to it, as the managers of contextlib refer to theirs."""

    def __init__(self) -> None:
        self.gen = self.pages()
        next(self.gen)

    def pages(self) -> Iterator[None]:
        yield


async def test_a_timeout_around_steps_alone_is_allowed(app: App, ledger: Ledger, clock: HandClock) -> None:
    @app.task
    async def boss() -> str:
        limit, scope, looped = asyncio.timeout(50), anyio.CancelScope(deadline=anyio.current_time() + 50), Looped()
        async with limit:
            with scope:
                await current().step("note", ledger.do, "note")
        unused = asyncio.timeout(50)
        await current().sleep(60)
        del limit, scope, looped, unused
        return "done"

    job = await boss.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "done"


@pytest.mark.usefixtures("tasks")
async def test_a_time_around_a_reply_next_to_a_wait_is_allowed(app: App, clock: HandClock) -> None:
    async def reply() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        loop.call_later(0.05, answer.set_result, "reply")
        async with asyncio.timeout(50):
            return await answer

    @app.task(retry=AGAIN)
    async def boss() -> Any:
        return (await asyncio.gather(current().sleep(60), current().step("reply", reply)))[1]

    job = await boss.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "reply"


@shows("a library whose order does not depend on the first of its tasks may race waits, if an integration trusts it")
@pytest.mark.parametrize("trusted", [True, False])
async def test_a_trusted_package_takes_the_first_of_several(
    app: App, clock: HandClock, ledger: Ledger, trusted: bool
) -> None:
    """As Pydantic AI awaits its tool calls: the first one done, with a signal that none of them may give."""

    @app.task(retry=AGAIN)
    async def boss() -> list[str]:
        here, signal = current(), asyncio.Event()
        if trusted:
            here._durably().trust("tests")

        async def branch(name: str, length: float) -> str:
            await here.sleep(length, name=name)
            return await here.step(name, ledger.do, name)

        tasks = [asyncio.create_task(branch("slow", 60)), asyncio.create_task(branch("quick", 10))]
        todo = {*tasks}
        while todo:
            waiting = asyncio.create_task(signal.wait())
            done, _ = await asyncio.wait({*todo, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            todo -= done
        return [task.result() for task in tasks]

    job = await boss.enqueue()
    for _ in range(3):
        await drain(app)
        clock.advance(61)
    if trusted:
        assert await job.result(0) == ["slow 1", "quick 1"]
    else:
        assert "use current().first" in await error_of(app, job)
