"""A replay takes little work for each stored entry, and a step as much as the first: calls are counted, not timed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from treadle import App, current
from treadle_testkit.shows import shows

FEW, MANY = 100, 300
STEPS, EACH = 1_000, 50
MOST = 45  # calls of functions in Python and C for an entry; on 29 November 2026 they were 113, and then 62


async def number(n: int) -> int:
    return n


async def calls_of_a_wake(steps: int) -> int:
    """How many functions are called from a wake-up until the function has replayed that many steps."""
    app, counted = App("memory://"), 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    @app.task
    async def long() -> int:
        total = sum([await current().step("number", number, n) for n in range(steps)])
        sys.setprofile(None)
        await current().sleep(60)
        return total

    async with app.testing() as t:
        job = await long.enqueue()
        await t.drain()
        before: Any = sys.getprofile()
        sys.setprofile(count)
        try:
            await t.advance(60)
            await t.drain()
        finally:
            sys.setprofile(before)
        assert await job.result(0) == sum(range(steps))
    return counted


@shows("a wake takes few calls for each stored step")
async def test_a_wake_takes_few_calls_for_each_stored_step() -> None:
    few, many = await calls_of_a_wake(FEW), await calls_of_a_wake(MANY)
    each = (many - few) / (MANY - FEW)
    assert each <= MOST, f"{each:.1f} calls for each stored step"


@shows("the thousandth step of a job takes its worker as many calls as the first")
async def test_the_thousandth_step_takes_as_many_calls_as_the_first() -> None:
    app, counts = App("memory://"), [0]

    def count(frame: FrameType, event: str, argument: object) -> None:
        counts[-1] += event in ("call", "c_call")

    @app.task
    async def long() -> None:
        for n in range(STEPS):
            await current().step("number", number, n)
            if n % EACH == EACH - 1:
                counts.append(0)

    async with app.testing() as t:
        await long.enqueue()
        before: Any = sys.getprofile()
        sys.setprofile(count)
        try:
            await t.drain()
        finally:
            sys.setprofile(before)
    _, first, *_, last, _ = counts
    assert last <= 1.02 * first, f"{first / EACH:.0f} calls for each of the first steps, {last / EACH:.0f} for the last"
