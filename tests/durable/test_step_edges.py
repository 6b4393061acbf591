"""Steps in odd places: in a `finally`, in tasks that are cut off, inside of other steps, in batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from treadle import Abort, App, BadStep, Defer, Retry, State, current, current_batch
from treadle.admin import histories
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

THRICE = Retry(attempts=3, base=10, jitter=0)
AT_ONCE = Retry(attempts=3, base=0)


class Refused(Exception):
    """An error whose constructor passes on other arguments than it takes."""

    def __init__(self, text: str, code: int = 3) -> None:
        super().__init__(f"refused {text}")
        self.code = code


@asynccontextmanager
async def closing(ledger: Ledger) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await current().step("close", ledger.do, "close")


async def to_its_end(app: App, clock: HandClock) -> None:
    for _ in range(6):
        await drain(app)
        clock.advance(60)


@shows(
    "a step in a `finally` or at the end of an `async with` is taken once, also around a sleep or a step with retries"
)
@pytest.mark.parametrize("around", ["sleep", "retry"])
async def test_a_step_at_the_end_of_a_block(app: App, clock: HandClock, ledger: Ledger, around: str) -> None:
    ledger.fail["pay"] = 1

    @app.task
    async def t() -> str:
        async with closing(ledger):
            try:
                if around == "sleep":
                    await current().sleep(20)
                else:
                    await current().step.options(retry=THRICE)("pay", ledger.do, "pay")
            finally:
                await current().step("log", ledger.do, "log")
        return "done"

    job = await t.enqueue()
    await to_its_end(app, clock)
    assert await job.result(0) == "done"
    assert (ledger.function_done["log"], ledger.function_done["close"]) == (1, 1)


async def test_a_loop_that_swallows_a_sleep_ends_with_an_error(app: App) -> None:
    @app.task(retry=AGAIN)
    async def t() -> None:
        while True:
            try:
                await current().sleep(20)
            except BadStep:
                raise
            except BaseException:
                continue

    job = await t.enqueue()
    await drain(app)
    assert "the function continued after sleep() or wait_for()" in await error_of(app, job)


@shows("a suspension that `gather(return_exceptions=True)` returns as a value suspends the job all the same")
async def test_a_suspension_as_a_value(app: App, clock: HandClock, ledger: Ledger) -> None:
    ledger.fail["a"] = 1

    @app.task
    async def t() -> list[str]:
        step = current().step.options(retry=THRICE)
        both = await asyncio.gather(
            step("a", ledger.do, "a"), current().step("b", ledger.do, "b"), return_exceptions=True
        )
        return [str(each) for each in both]

    job = await t.enqueue()
    await to_its_end(app, clock)
    assert [text.split()[0] for text in await job.result(0)] == ["a", "b"]


@shows("a step inside of a step runs once, however often the outer step is tried")
@pytest.mark.parametrize("retry", [AT_ONCE, THRICE])
async def test_a_step_inside_of_a_step_with_retries(app: App, clock: HandClock, ledger: Ledger, retry: Retry) -> None:
    ledger.fail["ship"] = 2

    async def order() -> str:
        await current().step("charge", ledger.do, "charge")
        return await ledger.do("ship")

    @app.task
    async def t() -> str:
        return await current().step.options(retry=retry)("order", order)

    job = await t.enqueue()
    await to_its_end(app, clock)
    await job.result(0)
    assert ledger.function_done["charge"] == 1


@shows("a cancellation that nobody asked for is an error of the step, and a step that the function cuts off is decided")
async def test_a_cancellation_from_elsewhere(app: App, clock: HandClock, ledger: Ledger) -> None:
    async def reads() -> None:
        other = asyncio.ensure_future(asyncio.Event().wait())
        other.cancel()
        await other

    @app.task(retry=AGAIN)
    async def t() -> str:
        with pytest.raises(Exception, match="cancelled"):
            await current().step("read", reads)
        return await current().step("end", ledger.do, "end")

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await to_its_end(app, clock)
    assert await job.result(0)


async def test_a_step_cut_off_while_it_waits_for_its_next_try(app: App, ledger: Ledger) -> None:
    ledger.fail["a"] = 1

    @app.task(retry=AGAIN)
    async def t() -> str:
        has_failed = asyncio.Event()

        async def a() -> str:
            has_failed.set()
            return await ledger.do("a")

        async def cuts_off() -> None:
            await has_failed.wait()
            await asyncio.sleep(0)
            first.cancel()

        first = asyncio.ensure_future(current().step.options(retry=THRICE)("a", a))
        side = asyncio.ensure_future(current().step("side", cuts_off))
        await asyncio.wait([first, side])
        return await current().step("undo", ledger.do, "undo")

    job = await t.enqueue()
    await drain(app)
    await job.result(0)
    entry = json.loads(dict((await app.jobs.get(job)).checkpoints)["a"])
    assert entry["failure"]["type"] == "CancelledError"


@shows("an error is raised again with its attributes, also if its constructor takes other arguments than it passes on")
async def test_errors_with_attributes(app: App, clock: HandClock, ledger: Ledger) -> None:
    codes: list[int] = []

    async def parses(text: str) -> Any:
        return json.loads(text)

    async def refuses() -> None:
        raise Refused("card", code=7)

    @app.task(retry=AGAIN)
    async def t() -> str:
        with pytest.raises(json.JSONDecodeError) as parsed:
            await current().step("parse", parses, "[1")
        with pytest.raises(Refused, match="refused card") as refused:
            await current().step("refuse", refuses)
        codes.append((parsed.value.pos, refused.value.code))
        return await current().step("end", ledger.do, "end")

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await to_its_end(app, clock)
    await job.result(0)
    assert codes == [(2, 7)] * 2


@shows("a step whose task was cancelled before it began is not a forgotten one, and a forgotten restart is")
async def test_steps_that_never_begin(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def cancelled() -> str:
        task = asyncio.ensure_future(current().step("a", ledger.do, "a"))
        task.cancel()
        await asyncio.wait([task])
        return "done"

    @app.task(retry=AGAIN)
    async def forgetful() -> None:
        current().restart()

    jobs = [await cancelled.enqueue(), await forgetful.enqueue()]
    await drain(app)
    assert await jobs[0].result(0) == "done"
    assert "step 'restart': was never awaited" in await error_of(app, jobs[1])


@shows("an error is stored before the next step runs, also if the coroutines of both were made before")
async def test_coroutines_made_early(app: App, clock: HandClock, ledger: Ledger) -> None:
    ledger.fail["0"] = ledger.fail["1"] = 1
    caught: list[list[int]] = []

    @app.task(retry=AGAIN)
    async def t() -> None:
        steps = [current().step(f"send:{n}", ledger.do, f"{n}") for n in range(3)]
        caught.append([])
        for n, step in enumerate(steps):
            try:
                await step
            except ValueError:
                caught[-1].append(n)
        await current().step("end", ledger.do, "end")

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await to_its_end(app, clock)
    await job.result(0)
    assert caught == [[0, 1]] * 2


async def test_a_deferral_of_a_step_that_is_caught_is_decided(app: App, clock: HandClock, ledger: Ledger) -> None:
    ledger.fail["a"] = 1
    ledger.fail["end"] = 1

    @app.task(retry=AGAIN)
    async def t() -> str:
        how = "done"
        try:
            await current().step.options(retry=THRICE, on_error=lambda *_: Defer(5))("a", ledger.do, "a")
        except Defer:
            how = "deferred"
        await current().step("end", ledger.do, "end")
        return how

    job = await t.enqueue()
    await to_its_end(app, clock)
    assert await job.result(0) == "deferred"


@shows("in a batch, the caught failure of one item is decided, and a step with retries is refused")
async def test_steps_of_a_batch(app: App, clock: HandClock, ledger: Ledger) -> None:
    ledger.fail["charge 1"] = 1
    ledger.fail["end"] = 1

    @app.batch(size=2, max_wait=0, retry=AGAIN)
    async def t(numbers: Sequence[int]) -> Sequence[str]:
        answers: list[str] = []
        for number, item in zip(numbers, current_batch(), strict=True):
            try:
                await item.step("charge", ledger.do, f"charge {number}")
                answers.append("charged")
            except ValueError:
                answers.append("undone")
        for number, item, answer in zip(numbers, current_batch(), answers, strict=True):
            if answer == "undone":
                await item.step("undo", ledger.do, f"undo {number}")
        await ledger.do("end")
        return answers

    @app.batch(size=2, max_wait=0, retry=AGAIN)
    async def retries(numbers: Sequence[int]) -> Sequence[int]:
        for item in current_batch():
            await item.step.options(retry=THRICE)("a", ledger.do, "a")
        return numbers

    jobs = [*await app.enqueue(t.job(1), t.job(2)), await retries.enqueue(1)]
    await to_its_end(app, clock)
    assert [await job.result(0) for job in jobs[:2]] == ["undone", "charged"]
    assert "a step of a batch has no `retry`" in await error_of(app, jobs[2])


async def test_an_equal_error_of_a_later_call_is_another_one(app: App, clock: HandClock, ledger: Ledger) -> None:
    class Down(Exception):
        def __eq__(self, other: object) -> bool:
            return type(other) is type(self)

        __hash__ = Exception.__hash__

    calls: list[int] = []

    async def call() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise Down
        return len(calls)

    @app.task(retry=AGAIN)
    async def t() -> int:
        try:
            return await current().step("first", call)
        except Exception:
            await current().sleep(5)
        return await current().step("second", call)

    job = await t.enqueue()
    await to_its_end(app, clock)
    assert await job.result(0) == 3


@shows("`treadle jobs export` hides secrets in the errors of steps")
async def test_an_exported_failure_has_no_secrets(app: App, ledger: Ledger) -> None:
    async def pays() -> None:
        raise ValueError({"password": "hunter2"})

    @app.task(retry=AGAIN)
    async def t() -> None:
        try:
            await current().step("pay", pays)
        except ValueError as error:
            await current().step("log", ledger.do, "log")
            raise Abort("no") from error

    job = await t.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert row.state is State.FAILED
    assert "hunter2" in dict(row.checkpoints)["pay"]
    [history] = [found async for found in histories.histories(app._core, {})]
    exported = json.loads(histories.line(history, app._core.redactor.of(row.job.task)))
    assert "hunter2" not in dict(exported["steps"])["pay"]
