"""The first of several waits, and time limits around durable code: what decided is recorded."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from treadle import App, JobFailed, Retry, State, current
from treadle.errors import BadOption
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

pytestmark = pytest.mark.usefixtures("tasks")

ONCE = Retry(attempts=1)
HOUR = 3600.0


class Order:
    """Waits for the first of a payment, a job that gives up, and a day."""

    def __init__(self, app: App, ledger: Ledger, kind: str = "async", keep: bool = False) -> None:
        self.app, self.ledger, self.keep = app, ledger, keep
        self.winners: list[Any] = []
        self.give_up = app.task(name="give_up", retry=ONCE)(self._give_up)
        run: Any = self._order if kind == "async" else self._order_in_thread
        self.order: Any = app.task(name="order", retry=AGAIN)(run)

    async def _give_up(self) -> str:
        return self.ledger.plain("give_up")

    def _waits(self) -> dict[str, Any]:
        here = current()
        return {
            "paid": here.wait_for("paid", timeout=2 * HOUR),
            "late": here.sleep(HOUR),
            "gone": here.call(self.give_up.options(delay=10 * HOUR).job()),
        }

    async def _order(self) -> list[Any]:
        here = current()
        winner = await here.first(keep=self.keep, **self._waits())
        self.winners.append(winner)
        await here.step("act", self.ledger.do, "act")
        await here.sleep(60)
        return list(winner)

    def _order_in_thread(self) -> list[Any]:
        here = current().sync
        winner = here.first(keep=self.keep, **self._waits())
        self.winners.append(winner)
        here.step("act", self.ledger.plain, "act")
        here.sleep(60)
        return list(winner)

    async def child(self) -> Any:
        [row] = (await self.app.jobs.list(task="give_up")).records
        return row


@shows("the winner of a race is recorded")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_signal_wins(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    order = Order(app, ledger, kind)
    job = await order.order.enqueue()
    await drain(app)
    await app.jobs.signal(job, "paid", 7)
    await drain(app)
    assert (await order.child()).state is State.CANCELLED
    clock.advance(HOUR)  # meanwhile the sleep is over, too
    await drain(app)
    assert await job.result(0) == ["paid", 7]
    assert order.winners == [("paid", 7)] * 2
    assert ledger.function_done == {"act": 1}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_sleep_wins(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    order = Order(app, ledger, kind)
    job = await order.order.enqueue()
    await drain(app)
    clock.advance(HOUR)
    await drain(app)
    await app.jobs.signal(job, "paid", 7)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == ["late", None]
    assert order.winners == [("late", None)] * 2


async def test_a_child_wins_whose_failure_is_raised(app: App, clock: HandClock, ledger: Ledger) -> None:
    ledger.fail["give_up"] = 1
    give_up = app.task(name="give_up", retry=ONCE)(lambda: ledger.plain("give_up"))

    @app.task(retry=ONCE)
    async def order() -> str:
        here = current()
        try:
            await here.first(paid=here.wait_for("paid"), gone=here.call(give_up.job()))
        except JobFailed as error:
            return f"{error.task} failed"
        return "paid"

    job = await order.enqueue()
    await drain(app)
    assert await job.result(0) == "give_up failed"


async def test_losing_children_are_kept(app: App, clock: HandClock, ledger: Ledger) -> None:
    order = Order(app, ledger, keep=True)
    job = await order.order.enqueue()
    await drain(app)
    await app.jobs.signal(job, "paid", 7)
    await drain(app)
    clock.advance(10 * HOUR)
    await drain(app)
    assert (await order.child()).state is State.SUCCEEDED
    assert await job.result(0) == ["paid", 7]


@shows("a signal that lost a race is received by a later wait")
async def test_a_signal_that_lost_is_used_by_a_later_wait(app: App, clock: HandClock) -> None:
    """The later wait has its own timeout, not that of the lost one."""

    @app.task
    async def order() -> list[Any]:
        here = current()
        winner = await here.first(paid=here.wait_for("paid", timeout=100), late=here.sleep(10))
        return [winner[0], await here.wait_for("paid", timeout=1000)]

    job = await order.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    clock.advance(500)
    await drain(app)
    await app.jobs.signal(job, "paid", 7)
    await drain(app)
    assert await job.result(0) == ["late", 7]


async def test_a_wait_that_timed_out_leaves_no_row_open_when_its_job_has_ended(app: App, clock: HandClock) -> None:
    """An open row would keep its workflow from being pruned for a month."""

    @app.task
    async def order() -> str:
        try:
            await current().wait_for("paid", timeout=10)
        except TimeoutError:
            return "late"
        return "paid"

    job = await order.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert await job.result(0) == "late"
    rows = (await app.jobs.list(parent=job.id)).records
    assert [row.state.final for row in rows] == [True]


async def test_races_in_races_and_the_first_named_of_several(app: App, clock: HandClock) -> None:
    @app.task
    async def order() -> Any:
        here = current()
        inner = here.first(a=here.sleep(20), b=here.wait_for("b"))
        return await here.first(inner=inner, c=here.sleep(20))

    job = await order.enqueue()
    await drain(app)
    await app.jobs.signal(job, "b", 1)
    clock.advance(30)
    await drain(app)
    assert await job.result(0) == ("inner", ("a", None))


async def test_steps_and_other_things_do_not_race(app: App) -> None:
    @app.task(retry=ONCE)
    async def order() -> list[str]:
        here, texts = current(), []
        wrong: list[Any] = [here.step("a", str), asyncio.sleep(0), 7]
        for thing in wrong:
            with pytest.raises(BadOption) as refused:
                await here.first(a=thing)
            texts.append(str(refused.value))
        with pytest.raises(BadOption):
            await here.first()
        return texts

    job = await order.enqueue()
    await drain(app)
    assert len(await job.result(0)) == 3


# --- time limits


class Limited:
    """Waits for a payment for a day at most."""

    def __init__(self, app: App, ledger: Ledger, kind: str = "async") -> None:
        self.ledger, self.ended = ledger, list[str]()
        run: Any = self._order if kind == "async" else self._order_in_thread
        self.order: Any = app.task(name="order", retry=AGAIN)(run)

    async def _order(self) -> str:
        here = current()
        try:
            async with here.timeout(timedelta(days=1)):
                await here.step("ask", self.ledger.do, "ask")
                await here.sleep(HOUR)
                answer = await here.wait_for("paid", returns=str)
        except TimeoutError as error:
            self.ended.append(str(error))
            await here.step("refund", self.ledger.do, "refund")
            await here.sleep(60)
            return "late"
        await here.sleep(60)
        return answer

    def _order_in_thread(self) -> str:
        here = current().sync
        try:
            with here.timeout(timedelta(days=1)):
                here.step("ask", self.ledger.plain, "ask")
                here.sleep(HOUR)
                answer = here.wait_for("paid", returns=str)
        except TimeoutError as error:
            self.ended.append(str(error))
            here.step("refund", self.ledger.plain, "refund")
            here.sleep(60)
            return "late"
        here.sleep(60)
        return answer


@shows("a time limit around durable code holds over all runs")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_time_limit_ends_a_wait(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    limited = Limited(app, ledger, kind)
    job = await limited.order.enqueue()
    await drain(app)
    clock.advance(HOUR)
    await drain(app)
    clock.advance(24 * HOUR)
    await drain(app)
    await app.jobs.signal(job, "paid", "paid")  # too late: the block has been left
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "late"
    assert limited.ended == [f"order {job.id}: 'timeout' of 86400 s has passed"] * 2
    assert ledger.function_done == {"ask": 1, "refund": 1}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_wait_that_is_over_in_time_has_its_value(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    limited = Limited(app, ledger, kind)
    job = await limited.order.enqueue()
    await drain(app)
    clock.advance(HOUR)
    await drain(app)
    await app.jobs.signal(job, "paid", "paid")
    await drain(app)
    clock.advance(30 * 24 * HOUR)  # outside of the block
    await drain(app)
    assert await job.result(0) == "paid"
    assert limited.ended == []


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_time_limit_ends_before_the_next_step(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    def long() -> None:
        clock.advance(100)

    async def order() -> str:
        here = current()
        try:
            async with here.timeout(60):
                await here.step("long", long)
                await here.step("never", ledger.do, "never")
        except TimeoutError:
            await here.sleep(60)
            return "late"
        return "in time"

    def order_in_thread() -> str:
        here = current().sync
        try:
            with here.timeout(60):
                here.step("long", long)
                here.step("never", ledger.plain, "never")
        except TimeoutError:
            here.sleep(60)
            return "late"
        return "in time"

    job = await app.task(name="order")(order if kind == "async" else order_in_thread).enqueue()  # type: ignore[operator]
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "late"
    assert ledger.function_done == {}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_outer_limit_passes_the_inner_block(app: App, clock: HandClock, kind: str) -> None:
    async def order() -> str:
        here = current()
        try:
            async with here.timeout(10):
                try:
                    async with here.timeout(100):
                        await here.sleep(1000)
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            await here.sleep(60)
            return "outer"
        return "neither"

    def order_in_thread() -> str:
        here = current().sync
        try:
            with here.timeout(10):
                try:
                    with here.timeout(100):
                        here.sleep(1000)
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            here.sleep(60)
            return "outer"
        return "neither"

    job = await app.task(name="order")(order if kind == "async" else order_in_thread).enqueue()  # type: ignore[operator]
    for _ in range(3):
        await drain(app)
        clock.advance(60)
    assert await job.result(0) == "outer"


async def test_a_clean_up_in_the_block_may_take_steps(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task
    async def order() -> str:
        here = current()
        try:
            async with here.timeout(10):
                try:
                    await here.wait_for("paid")
                finally:
                    await here.step("tidy", ledger.do, "tidy")
        except TimeoutError:
            await here.sleep(60)
            return "late"
        return "paid"

    job = await order.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    await app.jobs.signal(job, "paid")
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "late"
    assert ledger.function_done == {"tidy": 1}


async def test_a_time_limit_cancels_the_child_that_it_cuts_off(app: App, clock: HandClock) -> None:
    @app.task
    async def slow() -> None: ...

    @app.task
    async def order() -> str:
        here = current()
        try:
            async with here.timeout(10):
                await here.call(slow.options(delay=1000).job())
        except TimeoutError:
            return "late"
        return "done"

    job = await order.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert await job.result(0) == "late"
    [row] = (await app.jobs.list(task=slow.name)).records
    assert row.state is State.CANCELLED


async def test_a_limit_ends_the_tries_of_a_step(app: App, clock: HandClock, ledger: Ledger) -> None:
    ledger.fail["charge"] = 9

    @app.task
    async def order() -> str:
        here = current()
        try:
            async with here.timeout(100):
                await here.step.options(retry=Retry(attempts=5, base=70))("charge", ledger.do, "charge")
        except TimeoutError:
            return "late"
        return "charged"

    job = await order.enqueue()
    for _ in range(3):
        await drain(app)
        clock.advance(70)
    assert await job.result(0) == "late"


async def test_a_limit_that_is_not_caught_fails_the_job(app: App, clock: HandClock) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        async with current().timeout(10):
            await current().sleep(100)

    job = await order.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert "TimeoutError" in await error_of(app, job)
