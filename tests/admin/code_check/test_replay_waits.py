"""`replay` over histories with children, races and time limits: nothing is stored, and no child is called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle import App, StepMismatch, current
from treadle.admin.histories import History, histories
from treadle.testing import HandClock, drain, replay


async def page(number: int) -> int:
    return number


async def order(kind: str = "first") -> Any:
    here, call = current(), current_app().stub("page").job
    one = await here.call(call(1))
    many = await here.map([call(2), call(3)], at_most=1)
    name, _ = await here.first(paid=here.wait_for("paid"), gone=here.call(call(4)), late=here.sleep(3600))
    try:
        async with here.timeout(60):
            await asyncio.gather(here.wait_for("never"), here.call(current_app().stub("other").job()))
    except TimeoutError:
        await here.sleep(60, name=f"late:{one}:{many}:{name}")
    if kind == "last":
        await here.call(call(5))
    return await here.step("end", str, name)


APPS: list[App] = []


def current_app() -> App:
    return APPS[-1]


def program(function: Any = order) -> App:
    app = App("memory://", clock=HandClock())
    app.task(name="page")(page)
    app.task(name="order")(function)
    APPS.append(app)
    return app


async def recorded(kind: str = "first") -> list[History]:
    clock = HandClock()
    async with App("memory://", clock=clock) as app:
        app.task(name="page")(page)
        job = await app.task(name="order")(order).enqueue(kind)
        APPS.append(app)
        await drain(app)
        clock.advance(61)
        await drain(app)
        if kind == "last":
            clock.advance(61)
            await drain(app, tasks=["order"])
        assert not (await app.jobs.get(job)).state.final
        return [history async for history in histories(app._core, {})]


TAKEN = ("call:page", "map:page", "call:page#2", "first", "timeout")


async def test_the_same_code_follows_its_waits() -> None:
    history = await recorded()
    [told] = await replay(program(), history)
    assert [key for key in told.taken if not key.startswith("sleep")] == [*TAKEN, "wait:never", "call:other"]
    assert told.stopped_at == "sleep:late:1:[2, 3]:gone"


async def test_a_child_that_has_not_ended_stops_the_replay() -> None:
    history = await recorded("last")
    [told] = await replay(program(), history)
    assert told.stopped_at == "call:page#3"


async def _no_map(kind: str = "first") -> None:
    await current().call(current_app().stub("page").job(1))
    await current().sleep(60)


async def _other_winner(kind: str = "first") -> None:
    here, call = current(), current_app().stub("page").job
    await here.call(call(1))
    await here.map([call(2), call(3)])
    await here.first(gone=here.call(call(4)))


@pytest.mark.parametrize("changed", [_no_map, _other_winner])
async def test_changed_waits_are_found(changed: Any) -> None:
    history = await recorded()
    with pytest.raises(StepMismatch):
        await replay(program(changed), history)
