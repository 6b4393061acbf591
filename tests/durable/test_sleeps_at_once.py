"""Sleeps that are over at once: they have no entry in the history, and every run over it still gets behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.durable.kit import Ledger
from treadle import Abort, App, JobCancelled, Retry, State, current
from treadle.testing import HandClock, drain

ONCE = Retry(attempts=1)
Pause = Callable[[HandClock], Awaitable[None]]


def earlier(clock: HandClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.moment - seconds, UTC)


async def in_a_row(clock: HandClock) -> None:
    for _ in range(3):
        await current().sleep(0)


async def in_tasks(clock: HandClock) -> None:
    await asyncio.gather(*[current().sleep(0, name=str(number)) for number in range(2)])


async def in_a_branch(clock: HandClock) -> None:
    async def branch() -> None:
        await current().sleep(0)

    await asyncio.create_task(branch())


async def until_the_past(clock: HandClock) -> None:
    for seconds in (9, 8):
        await current().sleep(until=earlier(clock, seconds))


async def until_it_passed_in_this_run(clock: HandClock) -> None:
    if clock.moment < START + 10:
        clock.advance(10)
    for second in (3, 4):
        await current().sleep(until=datetime.fromtimestamp(START + second, UTC))


START = HandClock().moment
PAUSES = pytest.mark.parametrize(
    "pause", [in_a_row, in_tasks, in_a_branch, until_the_past, until_it_passed_in_this_run]
)


def booking(app: App, clock: HandClock, ledger: Ledger, pause: Pause, then: Any) -> Any:
    @app.task(name="t", retry=ONCE)
    async def t() -> None:
        await pause(clock)
        current().on_undo(ledger.do, "undo")
        await then()
        await current().sleep(60, name="long")

    return t


@PAUSES
async def test_an_undo_behind_them_runs(app: App, clock: HandClock, ledger: Ledger, pause: Pause) -> None:
    async def book() -> None:
        await current().step("book", ledger.do, "book")

    job = await booking(app, clock, ledger, pause, book).enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "undo": 1}


@PAUSES
async def test_an_undo_behind_them_runs_although_no_step_is_recorded(
    app: App, clock: HandClock, ledger: Ledger, pause: Pause
) -> None:
    """The effect has happened, and the job ends before the history has its step."""

    async def effect() -> None:
        ledger.plain("book")
        raise Abort("no answer")

    async def book() -> None:
        await current().step("book", effect)

    job = await booking(app, clock, ledger, pause, book).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert ledger.function_done == {"book": 1, "undo": 1}


@PAUSES
async def test_a_step_with_limits_behind_them_is_reached(
    app: App, clock: HandClock, ledger: Ledger, pause: Pause
) -> None:
    async def book() -> None:
        await current().step.options(limits=["api"])("book", ledger.do, "book")

    job = await booking(app, clock, ledger, pause, book).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.READY  # it sleeps
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "undo": 1}


async def test_threads_get_behind_them_too(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    def t() -> None:
        here = current().sync
        here.sleep(0)
        here.sleep(0)
        current().on_undo(ledger.plain, "undo")
        here.step("book", ledger.plain, "book")
        here.sleep(0)
        here.sleep(0)
        here.step.options(limits=["api"])("pay", ledger.plain, "pay")
        here.sleep(60)

    job = await t.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "pay": 1, "undo": 1}


async def test_a_sleep_that_a_new_version_makes_longer_was_still_over(app: App, ledger: Ledger) -> None:
    length = [0]

    @app.task(retry=ONCE)
    async def t() -> None:
        await current().sleep(length[0])
        current().on_undo(ledger.do, "undo")
        await current().step("book", ledger.do, "book")
        await current().sleep(60, name="long")

    job = await t.enqueue()
    await drain(app)
    length[0] = 5
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "undo": 1}


async def test_a_sleep_that_the_job_had_not_begun_raises_the_ending(app: App, clock: HandClock, ledger: Ledger) -> None:
    """The instant was to come when the job ran, and has passed when its cleanup begins."""
    instant = datetime.fromtimestamp(clock.moment + 60, UTC)

    @app.task(retry=Retry(attempts=2, base=30))
    async def t() -> None:
        await current().step("book", ledger.do, "book")
        ledger.plain("attempt")
        try:
            await current().sleep(until=instant)
        except JobCancelled:
            await current().step("release", ledger.do, "release")
            raise
        await current().step("use", ledger.do, "use")

    job = await t.enqueue()
    ledger.fail["attempt"] = 1
    await drain(app)
    await app.jobs.cancel(job)
    clock.advance(120)
    await drain(app)
    assert ledger.function_done == {"book": 1, "attempt": 2, "release": 1}


async def test_the_history_does_not_grow_by_them(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        for number in range(3):
            await in_a_row(clock)
            await until_the_past(clock)
            await current().step(f"step:{number}", ledger.do, "a")
        await current().sleep(60, name="long")

    job = await t.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert [name for name, _ in row.checkpoints] == ["step:0", "step:1", "step:2", "sleep:long"]
