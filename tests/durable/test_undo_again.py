"""Jobs that are cleaned up after and run again: undos of forks, time limits, messages, published values, clocks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import Ledger
from treadle import App, Retry, State, current
from treadle.policy.cleanups import cleanup_id, is_cleanup
from treadle.testing import HandClock, drain
from treadle_testkit.conformance.kit import beat
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)
DAY = 86_400


class Trips:
    """Books a flight, a car and a hotel, each with its undo, and sleeps before the hotel."""

    def __init__(self, app: App, ledger: Ledger, kind: str) -> None:
        self.app, self.ledger = app, ledger
        self.task: Any = app.task(name="trip", retry=ONCE)(self._thread if kind == "thread" else self._async)

    def do(self, what: str) -> str:
        return self.ledger.plain(what)

    async def _async(self) -> None:
        here = current()
        for what in ("flight", "car", "hotel"):
            here.on_undo(self.do, f"cancel {what}")
            await here.step(f"book:{what}", self.do, f"book {what}")
            if what == "car":
                await here.sleep(DAY)
                here.on_undo(self.do, "late")

    def _thread(self) -> None:
        here = current()
        for what in ("flight", "car", "hotel"):
            here.on_undo(self.do, f"cancel {what}")
            here.sync.step(f"book:{what}", self.do, f"book {what}")
            if what == "car":
                here.sync.sleep(DAY)
                here.on_undo(self.do, "late")

    @property
    def undone(self) -> set[str]:
        return {what for what, times in self.ledger.function_done.items() if times and not what.startswith("book")}


@shows("a fork that does not succeed undoes the steps that it has taken itself, and none of the original")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("ending", ["cancelled asleep", "fails"])
async def test_a_fork_undoes_its_own_steps(app: App, clock: HandClock, ledger: Ledger, kind: str, ending: str) -> None:
    trips = Trips(app, ledger, kind)
    job = await trips.task.enqueue()
    await drain(app)
    fork = await app.jobs.fork(job, from_step="book:car")
    await drain(app)
    assert ledger.function_done == {"book flight": 1, "book car": 2}
    if ending == "fails":
        ledger.fail["book hotel"] = 1
        clock.advance(DAY + 1)
        await app.jobs.pause(job)
    else:
        await app.jobs.cancel(fork)
    await drain(app)
    assert (await app.jobs.get(cleanup_id(fork.id, 0))).state is State.SUCCEEDED
    assert trips.undone == {"cancel car"} if ending != "fails" else {"cancel car", "late", "cancel hotel"}
    assert (await app.jobs.get(job)).state is State.READY


async def test_a_fork_of_a_fork_and_its_retry(app: App, clock: HandClock, ledger: Ledger) -> None:
    """Retried after its undos, the fork takes its own steps again, and keeps those that it has taken over."""
    trips = Trips(app, ledger, "async")
    first = await trips.task.enqueue()
    await drain(app)
    second = await app.jobs.fork(first, from_step="book:car")
    await drain(app)
    third = await app.jobs.fork(second, from_step="sleep")
    await drain(app)
    for job in (first, second):
        await app.jobs.pause(job)
    ledger.fail["book hotel"] = 1
    clock.advance(DAY + 1)
    await drain(app)
    assert trips.undone == {"late", "cancel hotel"}
    assert await app.jobs.retry(third) == 1
    await drain(app)
    clock.advance(DAY + 1)
    await drain(app)
    assert await third_result(app, third) is State.SUCCEEDED
    assert ledger.function_done == {"book flight": 1, "book car": 2, "book hotel": 2, "late": 1, "cancel hotel": 1}


async def test_an_undo_in_front_of_a_lock_belongs_to_the_step_inside(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        here.on_undo(ledger.do, "undo")
        async with here.lock("one"):
            await here.step("work", ledger.do, "work")
        await here.sleep(DAY)

    job = await t.enqueue()
    await drain(app)
    fork = await app.jobs.fork(job, from_step="work")
    await drain(app)
    assert ledger.function_done == {"work": 2}
    await app.jobs.cancel(fork)
    await drain(app)
    assert ledger.function_done == {"work": 2, "undo": 1}


@pytest.mark.parametrize("ending", ["cancelled asleep", "fails"])
async def test_an_undo_that_reads_the_result_of_its_step_from_a_list(
    app: App, clock: HandClock, ledger: Ledger, ending: str
) -> None:
    def cancel(booked: list[str]) -> None:
        for booking in booked:
            ledger.plain(f"cancel {booking}")

    @app.task(retry=ONCE)
    async def trip() -> None:
        here = current()
        for what in ("flight", "hotel", "car"):
            booked = list[str]()
            here.on_undo(cancel, booked)
            booked.append(await here.step(f"book:{what}", ledger.do, what))
            if what == "hotel":
                await here.sleep(DAY)

    job = await trip.enqueue()
    await drain(app)
    fork = await app.jobs.fork(job, from_step="book:hotel")
    await drain(app)
    if ending == "fails":
        await app.jobs.pause(job)
        ledger.fail["car"] = 1
        clock.advance(DAY + 1)
    else:
        await app.jobs.cancel(fork)
    await drain(app)
    undone = {what for what in ledger.function_done if what.startswith("cancel")}
    assert undone == {"cancel hotel 2"}


async def third_result(app: App, job: Any) -> State:
    return (await app.jobs.get(job)).state


# --- time limits


@shows("a time limit begins anew when its job is run again, forked or retried")
@pytest.mark.parametrize("how", ["rerun", "fork", "retry"])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_time_limit_begins_again(app: App, clock: HandClock, ledger: Ledger, how: str, kind: str) -> None:
    ledger.fail["work"] = 1

    async def limited() -> str:
        here = current()
        async with here.timeout(DAY):
            await here.step("before", ledger.do, "before")
            await here.step("work", ledger.do, "work")
            await here.sleep(DAY / 2)
            await here.step("after", ledger.do, "after")
        return "done"

    def limited_here() -> str:
        here = current().sync
        with here.timeout(DAY):
            here.step("before", ledger.plain, "before")
            here.step("work", ledger.plain, "work")
            here.sleep(DAY / 2)
            here.step("after", ledger.plain, "after")
        return "done"

    job = await app.task(name="limited", retry=ONCE)(limited if kind == "async" else limited_here).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    clock.advance(2 * DAY)
    if how == "retry":
        await app.jobs.retry(job)
    elif how == "rerun":
        await app.jobs.rerun(job, from_step="before")
    else:
        job = await app.jobs.fork(job, from_step="before")
    await drain(app)
    clock.advance(DAY / 2 + 1)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done["after"] == 1


def waiting(way: str) -> Any:
    """A durable function that waits for a minute in one of several ways, and for one more thing before."""

    async def limit() -> Any:
        async with current().timeout(60):
            await current().wait_for("first")
            return await current().wait_for("second")

    async def signal() -> Any:
        await current().wait_for("first")
        return await current().wait_for("second", timeout=60)

    async def race() -> Any:
        here = current()
        await here.wait_for("first")
        return (await here.first(second=here.wait_for("second", timeout=60), late=here.sleep(DAY)))[1]

    async def branches() -> Any:
        async def second() -> Any:
            await current().sleep(50)
            return await current().wait_for("second", timeout=10)

        await current().wait_for("first")
        return (await asyncio.gather(second(), current().wait_for("other", timeout=10 * DAY)))[0]

    def limit_here() -> Any:
        with current().sync.timeout(60):
            current().sync.wait_for("first")
            return current().sync.wait_for("second")

    def signal_here() -> Any:
        current().sync.wait_for("first")
        return current().sync.wait_for("second", timeout=60)

    return {each.__name__: each for each in (limit, signal, race, branches, limit_here, signal_here)}[way]


WAYS = ["limit", "signal", "race", "branches", "limit_here", "signal_here"]


@shows("a timeout that leaves the function fails the job at once: every attempt would time out at the same place")
@pytest.mark.parametrize("way", WAYS)
async def test_a_timeout_that_leaves_the_function_is_final(app: App, clock: HandClock, way: str) -> None:
    job = await app.task(name="waits", retry=Retry(attempts=5, base=10))(waiting(way)).enqueue()
    await app.jobs.signal(job, "first", 1)
    for _ in range(4):
        await drain(app)
        clock.advance(31)
    row = await app.jobs.get(job)
    assert (row.state, row.attempt, row.reason) == (State.FAILED, 1, "aborted")
    assert "TimeoutError: waits" in (row.error or "")


@shows("the timeout of a wait begins anew when its job is run again, forked or retried")
@pytest.mark.parametrize("how", ["rerun", "fork", "retry"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_timeout_that_has_ended_the_job_begins_again(app: App, clock: HandClock, way: str, how: str) -> None:
    job = await app.task(name="waits")(waiting(way)).enqueue()
    await app.jobs.signal(job, "first", 1)
    for _ in range(4):
        await drain(app)
        clock.advance(31)
    assert (await app.jobs.get(job)).state is State.FAILED
    if how == "retry":
        await app.jobs.retry(job)
    elif how == "rerun":
        await app.jobs.rerun(job, from_step="first")
    else:
        job = await app.jobs.fork(job, from_step="first")
        await app.jobs.signal(job, "first", 1)
    await drain(app)
    clock.advance(5)
    await app.jobs.signal(job, "second", 2)
    await app.jobs.signal(job, "other")
    await drain(app)
    clock.advance(50)
    await drain(app)
    assert await job.result(0) == 2


@pytest.mark.parametrize("how", ["rerun", "retry"])
async def test_the_timeout_of_a_wait_that_lasts_begins_again(
    app: App, clock: HandClock, ledger: Ledger, how: str
) -> None:
    ledger.fail["work"] = 1

    @app.task(retry=ONCE)
    async def waits() -> Any:
        answer = asyncio.create_task(_received())
        await current().sleep(60, name="night")
        await current().step("work", ledger.do, "work")
        return await answer

    async def _received() -> Any:
        return await current().receive("answer", timeout=100)

    job = await waits.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    clock.advance(60)
    await (app.jobs.retry(job) if how == "retry" else app.jobs.rerun(job, from_step="night"))
    await drain(app)
    clock.advance(60)
    await drain(app)
    await app.jobs.send(job, "answer", 7)
    await drain(app)
    assert await job.result(0) == 7


@pytest.mark.parametrize("way", ["limit", "wait"])
async def test_a_timeout_that_the_function_has_handled_stays(
    app: App, clock: HandClock, ledger: Ledger, way: str
) -> None:
    ledger.fail["behind"] = 1

    @app.task(retry=ONCE)
    async def limited() -> str:
        here = current()
        try:
            if way == "limit":
                async with here.timeout(60):
                    await here.step("before", ledger.do, "before")
                    await here.wait_for("answer")
            else:
                await here.step("before", ledger.do, "before")
                await here.wait_for("answer", timeout=60)
        except TimeoutError:
            # A branch is behind the wait as well.
            await asyncio.gather(here.step("late", ledger.do, "late"), in_a_task())
        await here.step("behind", ledger.do, "behind")
        return "late"

    async def in_a_task() -> None:
        await current().step("task", ledger.do, "task")

    job = await limited.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "late"
    for step in ("behind", "late"):
        await app.jobs.rerun(job, from_step=step)
        await drain(app)
        assert await job.result(0) == "late"
    assert ledger.function_done == {"before": 1, "late": 2, "task": 2, "behind": 4}
    await app.jobs.rerun(job, from_step="before")
    await drain(app)
    await app.jobs.signal(job, "answer")
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done == {"before": 2, "late": 2, "task": 2, "behind": 5}


async def test_a_handler_that_begins_with_branches_is_behind_the_timeout(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    ledger.fail["behind"] = 1

    @app.task(retry=ONCE)
    async def limited() -> None:
        try:
            await current().wait_for("answer", timeout=60)
        except TimeoutError:
            await asyncio.gather(late("a"), late("b"))
            await current().step("behind", ledger.do, "behind")

    async def late(name: str) -> None:
        await current().step(name, ledger.do, name)

    job = await limited.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done == {"a": 1, "b": 1, "behind": 2}


async def test_a_race_whose_winner_failed_begins_again(app: App, ledger: Ledger) -> None:
    ledger.fail["child"] = 1

    @app.task(retry=ONCE)
    async def child() -> str:
        return await ledger.do("child")

    @app.task(retry=ONCE)
    async def races() -> Any:
        here = current()
        return await here.first(child=here.call(child.job()), late=here.sleep(DAY))

    job = await races.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    await app.jobs.retry(job)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done == {"child": 2}


async def test_a_cleanup_that_is_retried_leaves_the_limits_of_its_job_at_the_same_place(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    ledger.fail["undo"] = 1

    @app.task(retry=ONCE)
    async def limited() -> None:
        here = current()
        async with here.timeout(60):
            here.on_undo(ledger.do, "undo")
            await here.step("book", ledger.do, "book")
            await here.wait_for("answer")

    job = await limited.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    cleanup = cleanup_id(job.id, 0)
    await app.jobs.cancel(cleanup, force=True)
    await app.jobs.retry(cleanup)
    await drain(app)
    assert (await app.jobs.get(cleanup)).state is State.SUCCEEDED
    assert ledger.function_done == {"book": 1, "undo": 2}


# --- messages


@shows("a job that is retried after its undos ran receives its messages and signals again")
async def test_messages_of_an_undone_round_are_received_again(app: App, ledger: Ledger) -> None:
    ledger.fail["pay"] = 1
    seen = list[list[Any]]()

    @app.task(retry=ONCE)
    async def cart() -> list[Any]:
        here = current()
        here.on_undo(ledger.do, "undo")
        items = [await here.receive("add") for _ in range(3)]
        items.append(await here.wait_for("checkout"))
        seen.append(items)
        await here.step("pay", ledger.do, "pay")
        return items

    job = await cart.enqueue()
    for item in ("apple", "pear", "plum"):
        await app.jobs.send(job, "add", item)
    await app.jobs.signal(job, "checkout", "now")
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert ledger.function_done["undo"] == 1
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == ["apple", "pear", "plum", "now"]


# --- published values


@shows("a value that a cleanup publishes is one of the job")
async def test_a_cleanup_publishes_for_its_job(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        await here.publish("status", "begun")
        await here.publish("size", 1)
        try:
            await here.sleep(DAY)
        finally:
            await here.publish("status", "cancelled")
            await here.step("close", ledger.do, "close")

    job = await t.enqueue()
    await drain(app)
    assert await app.jobs.value(job, "status") == "begun"
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"close": 1}
    assert await app.jobs.value(job, "status") == "cancelled"
    assert (await app.jobs.history(job)).values == {"status": "cancelled", "size": 1}


# --- clocks that are set back


async def set_back(app: App, clock: HandClock) -> None:
    """The storage counts the rest of each sleep anew at the next heartbeat."""
    storage = await app._core.open()
    await beat(storage)
    clock.advance(-50_000)
    await beat(storage)


@shows("a sleep that the function has got behind stays over when the clock of the storage is set back")
@pytest.mark.parametrize("when", ["in the step behind it", "later", "before it is claimed"])
async def test_a_sleep_stays_over(app: App, clock: HandClock, ledger: Ledger, when: str) -> None:
    @app.task(retry=ONCE)
    async def trip() -> None:
        here = current()
        await here.sleep(60, name="first")
        here.on_undo(ledger.do, "undo")
        if when == "in the step behind it":
            await here.step.options(retry=Retry(attempts=9, base=DAY))("work", ledger.do, "work")
        else:
            await here.step("work", ledger.do, "work")
        await here.sleep(60, name="second")
        here.on_undo(ledger.do, "undo more")
        await here.step("more", ledger.do, "more")
        await here.sleep(DAY, name="third")

    if when == "in the step behind it":
        ledger.fail["work"] = 9
    job = await trip.enqueue()
    await drain(app)
    if when == "before it is claimed":
        await set_back(app, clock)
    clock.advance(61)
    await drain(app)
    assert ledger.function_done["work"] == 1
    await set_back(app, clock)
    if when == "later":
        clock.advance(61)
        await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    row = await app.jobs.get(cleanup_id(job.id, 0))
    assert row.state is State.SUCCEEDED, row.error
    done = {"work": 1, "undo": 1} | ({"more": 1, "undo more": 1} if when == "later" else {})
    assert ledger.function_done == done


async def test_a_sleep_that_was_over_in_its_run_is_known_to_the_cleanup(
    app: App, clock: HandClock, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of another branch keeps the run from being suspended, so no claim shows that the sleep was over."""
    monkeypatch.setattr("treadle.durable.parking.LOOK", 0.01)
    asleep, charged = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        await asleep.wait()
        clock.advance(61)
        await charged.wait()
        raise ValueError("late")

    async def charging() -> None:
        here = current()
        asleep.set()
        await here.sleep(60)
        here.on_undo(ledger.do, "refund")
        await here.step("charge", charge)

    async def charge() -> None:
        charged.set()
        raise RuntimeError("no answer")

    @app.task(retry=ONCE)
    async def t() -> None:
        await asyncio.gather(current().step("slow", slow), charging())

    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    rows = [row for row in (await app.jobs.list(task=t.name)).records if is_cleanup(row.job)]
    assert [row.state for row in rows] == [State.SUCCEEDED]
    assert ledger.function_done == {"refund": 1}
