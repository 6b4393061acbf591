"""Options of a step: it is tried again without a slot, within a time, and its last error is stored."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from tests.kit import Told
from treadle import Abort, App, BadOption, Defer, Retry, State, StepFailed, current
from treadle.execution.durable_context import DurableContext, Synchronous
from treadle.execution.wait_calls import WaitContext
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)
THRICE = Retry(attempts=3, base=10, factor=2, jitter=0)


def charging(app: App, ledger: Ledger, kind: str, **options: Any) -> Any:
    """A task with one step that has options; its own policy has one attempt."""

    async def t() -> str:
        paid = await current().step.options(**options)("charge", ledger.do, "charge")
        return await current().step("end", ledger.do, f"end {paid}")

    def thread() -> str:
        paid = current().sync.step.options(**options)("charge", ledger.plain, "charge")
        return current().sync.step("end", ledger.plain, f"end {paid}")

    return app.task(name="t", retry=ONCE)(t if kind == "async" else thread)


def test_current_sync_has_every_call_of_durable_code() -> None:
    names = {name for name in (*vars(WaitContext), *vars(DurableContext)) if not name.startswith("_")}
    assert names - {"sync"} <= {*dir(Synchronous)}


async def test_keys_in_threads(app: App) -> None:
    @app.task
    def t() -> tuple[bool, bool]:
        here = current().sync
        inside = here.step("charge", here.step_key)
        with here.once("monday") as first:
            return first, inside == here.step_key("charge") == current().step_key("charge")

    jobs = [await t.enqueue() for _ in range(2)]
    await drain(app)
    assert sorted([await job.result() for job in jobs]) == [(False, True), (True, True)]


@shows("between two tries of a step the job uses no slot, and no attempt is counted")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_step_is_tried_again_without_a_slot(
    app: App, clock: HandClock, told: Told, ledger: Ledger, kind: str
) -> None:
    ledger.fail["charge"] = 2
    job = await charging(app, ledger, kind, retry=THRICE).enqueue()
    for wait in (10, 20):
        assert await drain(app) == 1
        row = await app.jobs.get(job)
        assert (row.state, row.attempt, row.due_at) == (State.READY, 0, pytest.approx(clock.moment + wait))
        [step] = (await app.jobs.history(job)).steps
        assert (step.name, step.kind, step.failed, step.done) == ("charge", "step", True, False)
        assert step.value == "ValueError: charge"
        clock.advance(wait)
    assert await drain(app) == 1
    assert await job.result(0) == "end charge 3 1"
    assert [event.name for event in told.events].count("deferred") == 2


@shows("when the tries of a step are used up, its error is stored, and every run raises it")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_last_error_is_stored(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    ledger.fail["charge"] = 5
    job = await charging(app, ledger, kind, retry=THRICE).enqueue()
    for _ in range(5):
        await drain(app)
        clock.advance(60)
    assert ledger.function_done == {"charge": 3}
    assert (await error_of(app, job)).startswith("ValueError: charge")
    [step] = (await app.jobs.history(job)).steps
    assert (step.failed, step.done, step.value) == (True, True, "ValueError: charge")
    await app.jobs.retry(job)  # an operator has repaired the cause: the tries begin again
    ledger.fail.clear()
    await drain(app)
    assert await job.result(0) == "end charge 4 1"


async def test_a_caught_error_of_the_last_try_is_the_same_in_every_run(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            await current().step.options(retry=Retry(attempts=2, base=0))("a", ledger.do, "a")
        except ValueError as error:
            ledger.plain("end")
            return str(error)
        return "succeeded"

    ledger.fail["a"] = ledger.fail["end"] = 2
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == "a"
    assert ledger.function_done == {"a": 2, "end": 3}


@pytest.mark.parametrize("how", ["abort", "only"])
@shows("a final error of a step is stored after one try")
async def test_a_final_error_is_stored_after_one_try(app: App, ledger: Ledger, how: str) -> None:
    async def fail() -> None:
        ledger.function_done["a"] += 1
        raise Abort("declined") if how == "abort" else KeyError("declined")

    only = None if how == "abort" else Retry.only(ConnectionError)

    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            await current().step.options(retry=THRICE, on_error=only)("a", fail)
        except (Abort, KeyError) as error:
            ledger.plain("end")
            return type(error).__name__
        return "succeeded"

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ("Abort" if how == "abort" else "KeyError")
    assert ledger.function_done["a"] == 1


async def test_on_error_decides_when_the_next_try_is(app: App, clock: HandClock, ledger: Ledger) -> None:
    seen: list[tuple[int, int | None]] = []

    def on_error(error: BaseException, failure: Any) -> Any:
        seen.append((failure.attempt, failure.attempts))
        return Retry.after(100) if failure.attempt == 1 else Defer(500)

    ledger.fail["charge"] = 2
    job = await charging(app, ledger, "async", retry=THRICE, on_error=on_error).enqueue()
    for wait in (100, 500):
        await drain(app)
        row = await app.jobs.get(job)
        assert (row.attempt, row.due_at) == (0, pytest.approx(clock.moment + wait))
        clock.advance(wait)
    await drain(app)
    assert await job.result(0) == "end charge 3 1"
    assert seen == [(1, 3), (2, 3)]


@shows("a step's timeout bounds each of its tries")
async def test_a_timeout_of_a_step(app: App, clock: HandClock) -> None:
    began: list[int] = []

    async def slow() -> str:
        began.append(1)
        if len(began) < 3:
            await asyncio.Event().wait()
        return "in time"

    @app.task(retry=ONCE)
    async def t() -> str:
        here = current()
        with pytest.raises(TimeoutError, match=r"longer than its timeout of 0.01 s"):
            await here.step.options(timeout=0.01)("once", slow)
        options = here.step.options(timeout=timedelta(seconds=5 if began[1:] else 0.01), retry=THRICE)
        return await options("again", slow)

    job = await t.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert await job.result(0) == "in time"
    assert len(began) == 3


@shows("a step in a thread gets a request to stop at its timeout, and its try has failed when it returns")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_a_timeout_of_a_step_in_a_thread(app: App, clock: HandClock, kind: str, ending: str) -> None:
    asked: list[bool] = []

    def slow() -> str:
        if len(asked) < 2:
            asked.append(current().wait(60) and current().cancelled)
            if ending == "raises":
                raise ValueError("stopped")
            return "too late"
        return "in time" if not current().wait(0.0) else "still too late"

    async def t() -> str:
        step = current().step
        with pytest.raises(TimeoutError, match=r"'once' took longer than its timeout of 0.01 s"):
            await step.options(timeout=0.01)("once", slow)
        assert not current().cancelled
        return await step.options(timeout=timedelta(seconds=60 if asked[1:] else 0.01), retry=THRICE)("again", slow)

    def t_here() -> str:
        step = current().sync.step
        with pytest.raises(TimeoutError, match=r"'once' took longer than its timeout of 0.01 s"):
            step.options(timeout=0.01)("once", slow)
        assert not current().cancelled
        return step.options(timeout=60 if asked[1:] else 0.01, retry=THRICE)("again", slow)

    job = await app.task(name="t", retry=ONCE)(t if kind == "async" else t_here).enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert await job.result(0) == "in time"
    assert asked == [True, True]


async def test_a_run_waits_for_steps_in_progress_before_it_is_deferred(app: App, clock: HandClock) -> None:
    """Otherwise their functions would run again."""
    log: list[str] = []
    go = asyncio.Event()

    async def fail_first(name: str) -> str:
        log.append(name)
        if log.count(name) == 1:
            asyncio.get_running_loop().call_soon(go.set)
            raise ValueError(name)
        return name

    async def slow() -> str:
        await go.wait()
        log.append("slow")
        return "slow"

    @app.task(retry=ONCE)
    async def t() -> list[str]:
        step = current().step.options(retry=THRICE)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(step("a", fail_first, "a")),
                group.create_task(step("b", fail_first, "b")),
                group.create_task(current().step("slow", slow)),
            ]
        return [task.result() for task in tasks]

    job = await t.enqueue()
    assert await drain(app) == 1
    row = await app.jobs.get(job)
    assert (row.state, row.attempt, row.due_at) == (State.READY, 0, pytest.approx(clock.moment + 10, abs=1))
    clock.advance(20)
    await drain(app)
    assert await job.result(0) == ["a", "b", "slow"]
    assert sorted(log) == ["a", "a", "b", "b", "slow"]


async def test_a_step_inside_of_a_step_is_tried_again(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> str:
        async def outer() -> str:
            return await current().step.options(retry=THRICE)("inner", ledger.do, "inner")

        return await current().step("outer", outer)

    ledger.fail["inner"] = 1
    job = await t.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert await job.result(0) == "inner 2"


async def test_a_function_that_swallows_the_suspension_between_two_tries_fails(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            return await current().step.options(retry=THRICE)("a", ledger.do, "a")
        except BaseException:
            return "swallowed"

    ledger.fail["a"] = 1
    job = await t.enqueue()
    await drain(app)
    assert "the function continued after sleep() or wait_for()" in await error_of(app, job)


async def test_a_run_that_begins_before_the_next_try_is_due_waits_for_it(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    ledger.fail["charge"] = 1
    job = await charging(app, ledger, "async", retry=THRICE).enqueue()
    await drain(app)
    clock.advance(4)
    await app.jobs.run_now(job)
    assert await drain(app) == 1
    assert ledger.function_done["charge"] == 1
    assert (await app.jobs.get(job)).due_at == pytest.approx(clock.moment + 6)


async def test_options_are_checked_when_they_are_given(app: App) -> None:
    @app.task(retry=ONCE)
    async def t() -> str:
        step = current().step
        with pytest.raises(BadOption, match="expected Retry"):
            step.options(retry=3)  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="more than 0 s"):
            step.options(timeout=0)
        with pytest.raises(BadOption, match="with retry="):
            step.options(on_error=Retry.only(OSError))
        return "refused"

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == "refused"


async def test_an_error_that_cannot_be_stored_is_a_step_failed_after_the_last_try(app: App) -> None:
    class Local(Exception):
        pass

    async def fail() -> None:
        raise Local("no")

    @app.task(retry=ONCE)
    async def t() -> tuple[str, str]:
        try:
            await current().step.options(retry=Retry(attempts=2, base=0))("a", fail)
        except StepFailed as error:
            return error.kind.rpartition(".")[2], error.message
        return "", ""

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ("Local", "no")
