"""Acts of operators on one durable job: pause and resume, again from a step, and fork."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger
from tests.kit import work
from treadle import App, BadOption, Retry, Stale, State, UnknownJob, current
from treadle.core.model import PAUSED
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


async def ran(app: App) -> None:
    await drain(app)


# --- pause and resume


@shows("a job is paused and resumed, also while it sleeps: it sleeps for what is left")
@pytest.mark.parametrize("sleeps", [True, False])
async def test_a_paused_sleep_lasts_until_its_end(app: App, clock: HandClock, ledger: Ledger, sleeps: bool) -> None:
    @app.task(retry=AGAIN)
    async def nap() -> str:
        here = current()
        await here.step("before", ledger.do, "before")
        await here.sleep(1_000)
        return await here.step("after", ledger.do, "after")

    job = await nap.enqueue()
    await ran(app)
    assert await app.jobs.pause(job) == 1
    assert await app.jobs.pause(job) == 0  # a second click
    row = await app.jobs.get(job)
    assert (row.state, row.reason) == (State.READY, PAUSED)
    clock.advance(400 if sleeps else 2_000)
    await ran(app)
    assert ledger.function_done == Counter(before=1)
    assert await app.jobs.resume(job) == 1
    assert await app.jobs.resume(job) == 0
    await ran(app)
    if sleeps:
        assert ledger.function_done == Counter(before=1)
        clock.advance(601)
        await ran(app)
    assert ledger.function_done == Counter(before=1, after=1)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED


async def test_a_queued_a_scheduled_and_a_waiting_job_are_paused(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task
    async def note(name: str) -> None:
        await ledger.do(name)

    first = await note.enqueue("first")
    queued = await note.enqueue("queued")
    scheduled = await note.options(delay=100).enqueue("scheduled")
    waiting = await note.options(after=first).enqueue("waiting")
    for job in (queued, scheduled, waiting):
        assert await app.jobs.pause(job) == 1
    await ran(app)
    clock.advance(200)
    await ran(app)
    assert ledger.function_done == Counter(first=1)
    assert await app.jobs.resume(ids=[queued.id, scheduled.id, waiting.id]) == 3
    await ran(app)
    assert ledger.function_done == Counter(first=1, queued=1, scheduled=1, waiting=1)


async def test_a_job_that_waits_for_others_waits_again_when_it_is_resumed(app: App, ledger: Ledger) -> None:
    """An upstream that failed meanwhile is counted as if the job had not been paused."""

    @app.task(retry=Retry(attempts=1))
    async def note(name: str) -> None:
        await ledger.do(name)

    ledger.fail["bad"] = 1
    good, bad = await note.enqueue("good"), await note.enqueue("bad")
    jobs = [await note.options(after=up).enqueue(f"after {up.id == good.id}") for up in (good, bad)]
    open_ = await note.options(delay=1_000).enqueue("late")
    jobs.append(await note.options(after=open_).enqueue("after late"))
    for job in jobs:
        await app.jobs.pause(job)
    await ran(app)
    for job in jobs:
        await app.jobs.resume(job)
    await ran(app)
    states = [(await app.jobs.get(job)).state for job in jobs]
    assert states == [State.SUCCEEDED, State.CANCELLED, State.WAITING]


@shows("a pause of a job that waits for a signal keeps a signal that is sent meanwhile")
async def test_a_paused_wait_receives_its_signal_when_it_is_resumed(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def ask() -> str:
        return str(await current().wait_for("approved"))

    job = await ask.enqueue()
    await ran(app)
    await app.jobs.pause(job)
    await app.jobs.signal(job, "approved", "yes")
    await ran(app)
    assert (await app.jobs.get(job)).reason == PAUSED
    await app.jobs.resume(job)
    await ran(app)
    assert await job.result(0) == "yes"


@shows("a pause stops a running job, which runs on from its last step when it is resumed")
async def test_a_running_job_is_stopped_and_continues_later(app: App, ledger: Ledger) -> None:
    reached, cut = asyncio.Event(), asyncio.Event()

    @app.task(retry=AGAIN)
    async def long() -> str:
        here = current()
        await here.step("first", ledger.do, "first")
        if not reached.is_set():
            reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                cut.set()
        return await here.step("second", ledger.do, "second")

    job = await long.enqueue()
    async with work(app):
        await reached.wait()
        assert await app.jobs.pause(job) == 1
        await cut.wait()
        row = await app.jobs.get(job)
        assert (row.reason, row.attempt) == (PAUSED, 0)
        await app.jobs.resume(job)
        assert await job.result(timeout=20) == "second 1"
    assert ledger.function_done == Counter(first=1, second=1)


async def test_an_ended_job_cannot_be_paused(app: App, ledger: Ledger) -> None:
    @app.task
    async def note(name: str) -> None:
        await ledger.do(name)

    job = await note.enqueue("done")
    with pytest.raises(UnknownJob):
        await app.jobs.pause(f"{job.id}x")
    await ran(app)
    for act in (app.jobs.pause, app.jobs.resume):
        with pytest.raises(Stale, match="only unfinished jobs"):
            await act(job)
    paused = await note.enqueue("paused")
    await app.jobs.pause(paused)
    with pytest.raises(Stale, match="not paused"):
        await app.jobs.run_now(paused)
    assert await app.jobs.run_now(state="ready") == 0
    assert await app.jobs.cancel(paused) == 1
    assert await app.jobs.retry(paused) == 1  # a former pause has no effect
    await ran(app)
    assert ledger.function_done == Counter(done=1, paused=1)


@shows("`Retry(then='pause')` pauses a job whose attempts are used up; resumed, it has as many again")
async def test_a_job_without_attempts_left_is_paused(app: App, ledger: Ledger) -> None:
    heard: list[str] = []
    app.on("retrying", "paused", "failed")(lambda event: heard.append(event.name))

    @app.task(retry=Retry(attempts=2, base=0, then="pause"))
    async def charge() -> str:
        here = current()
        await here.step("reserve", ledger.do, "reserve")
        return await here.step("charge", ledger.do, "charge")

    ledger.fail["charge"] = 5
    job = await charge.enqueue()
    await ran(app)
    row = await app.jobs.get(job)
    assert (row.state, row.reason, row.attempt) == (State.READY, PAUSED, 2)
    assert "ValueError" in (row.error or "")
    assert "attempts are used up" in await app.jobs.explain(job)
    assert [one.outcome for one in (await app.jobs.history(job)).attempts] == ["retrying", "failed"]
    await app.jobs.resume(job)
    await ran(app)
    assert ledger.function_done == Counter(reserve=1, charge=4)
    ledger.fail["charge"] = 0
    await app.jobs.resume(job)
    await ran(app)
    assert await job.result(0) == "charge 5"
    assert heard == ["retrying", "paused"] * 2
    with pytest.raises(BadOption, match="then"):
        Retry(then="stop")  # type: ignore[arg-type]


# --- again from a step


def saga(app: App, ledger: Ledger) -> Any:
    @app.task(retry=Retry(attempts=1))
    async def order(number: int) -> str:
        here = current()
        await here.step("reserve", ledger.do, "reserve")
        keys.append(here.step_key("charge"))
        receipt = await here.step("charge", ledger.do, "charge")
        await here.sleep(10)
        await here.step("ship", ledger.do, "ship")
        return f"{number}: {receipt}"

    keys: list[str] = []
    order.keys = keys  # type: ignore[attr-defined]
    return order


@shows("an ended job is run again from one of its steps: earlier steps stay, later ones run again")
@pytest.mark.parametrize("fails", [False, True])
async def test_an_ended_job_runs_again_from_a_step(app: App, clock: HandClock, ledger: Ledger, fails: bool) -> None:
    order = saga(app, ledger)
    ledger.fail["ship"] = int(fails)
    job = await order.enqueue(7)
    await ran(app)
    clock.advance(11)
    await ran(app)
    assert (await app.jobs.get(job)).state is (State.FAILED if fails else State.SUCCEEDED)
    await app.jobs.rerun(job, from_step="charge")
    names = [step.name for step in (await app.jobs.history(job)).steps]
    assert names == ["reserve"]
    await ran(app)
    assert (await app.jobs.get(job)).reason == "asleep in sleep:sleep"
    clock.advance(11)
    await ran(app)
    assert await job.result(0) == "7: charge 2"
    assert ledger.function_done == Counter(reserve=1, charge=2, ship=2)
    assert dict.fromkeys(order.keys) == dict.fromkeys([f"{job.id}:charge", f"{job.id}@1:charge"])
    row = await app.jobs.get(job)
    assert (row.reopenings, row.attempt) == (1, 1)


async def test_a_job_runs_again_from_its_start(app: App, clock: HandClock, ledger: Ledger) -> None:
    """Also one that sleeps; the new round sleeps anew."""
    order = saga(app, ledger)
    job = await order.enqueue(7)
    await ran(app)
    await app.jobs.rerun(job)
    await ran(app)
    clock.advance(11)
    await ran(app)
    assert ledger.function_done == Counter(reserve=2, charge=2, ship=1)
    await app.jobs.rerun(job, from_step="sleep")  # the sleep by its own name
    await ran(app)
    assert ledger.function_done == Counter(reserve=2, charge=2, ship=1)
    clock.advance(11)
    await ran(app)
    assert ledger.function_done == Counter(reserve=2, charge=2, ship=2)


async def test_a_mistyped_step_and_a_running_job_are_refused(app: App, ledger: Ledger) -> None:
    order = saga(app, ledger)
    job = await order.enqueue(7)
    await ran(app)
    for act in (app.jobs.rerun, app.jobs.fork):
        with pytest.raises(BadOption, match="no stored step 'chrge'; did you mean 'charge'"):
            await act(job, from_step="chrge")
        with pytest.raises(UnknownJob):
            await act("nobody")

    reached = asyncio.Event()

    @app.task
    async def long() -> None:
        reached.set()
        await asyncio.Event().wait()

    async with work(app):
        running = await long.enqueue()
        await reached.wait()
        with pytest.raises(Stale, match="pause or cancel it first"):
            await app.jobs.rerun(running)
        await app.jobs.cancel(running)


@shows("a job that runs again from a step receives the signals again that later waits had received")
async def test_signals_of_later_waits_are_received_again(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=Retry(attempts=1))
    async def ask() -> list[Any]:
        here, answers = current(), []
        await here.step("first", ledger.do, "first")
        for name in ("a", "b"):
            try:
                answers.append(await here.wait_for(name, 100))
            except TimeoutError:
                answers.append("late")
            await here.step(f"behind {name}", ledger.do, "behind")
        return answers

    job = await ask.enqueue()
    await app.jobs.signal(job, "a", 1)
    await ran(app)
    clock.advance(101)
    await ran(app)
    assert await job.result(0) == [1, "late"]
    await app.jobs.rerun(job, from_step="first")
    await ran(app)
    await app.jobs.signal(job, "b", 2)  # the wait that timed out waits again, for a signal of its own
    await ran(app)
    assert await job.result(0) == [1, 2]
    assert ledger.function_done == Counter(first=2, behind=4)


async def test_later_entries_of_all_branches_are_deleted(app: App, ledger: Ledger) -> None:
    """A step may depend on another branch, so the order of storing decides."""
    gate = asyncio.Event()

    @app.task(retry=Retry(attempts=1))
    async def both() -> None:
        here = current()

        async def branch(name: str) -> None:
            await here.step(f"{name}1", ledger.do, f"{name}1")
            await here.step(f"{name}2", ledger.do, f"{name}2")

        async def late() -> None:
            await gate.wait()
            await branch("b")

        async def early() -> None:
            await branch("a")
            gate.set()

        await asyncio.gather(early(), late())
        await here.step("end", ledger.do, "end")

    job = await both.enqueue()
    await ran(app)
    await app.jobs.rerun(job, from_step="a2")
    assert [step.name for step in (await app.jobs.history(job)).steps] == ["a1"]
    await ran(app)
    assert ledger.function_done == Counter(a1=1, a2=2, b1=2, b2=2, end=2)


# --- fork


@shows("a fork is a new job that continues from a step of another one, with other arguments if wanted")
async def test_a_fork_continues_from_a_step(app: App, clock: HandClock, ledger: Ledger) -> None:
    order = saga(app, ledger)
    job = await order.options(key="only").enqueue(7)
    await ran(app)
    forks = [
        await app.jobs.fork(job, from_step="charge"),
        await app.jobs.fork(job, from_step="charge", args=[8]),
        await app.jobs.fork(job, kwargs={"number": 9}),
    ]
    assert f"forked from job {job.id}, at its step 'charge'" in await app.jobs.explain(forks[0])
    clock.advance(5)
    await ran(app)
    clock.advance(11)
    await ran(app)
    results = [await one.result(0) for one in (job, *forks)]
    assert [text.partition(":")[0] for text in results] == ["7", "7", "8", "9"]
    assert ledger.function_done == Counter(reserve=2, charge=4, ship=4)
    row = await app.jobs.get(forks[0])
    assert (row.job.key, row.job.root, row.id != job.id) == (None, None, True)
    assert f"{forks[0].id}:charge" in order.keys


async def test_a_fork_with_other_arguments_keeps_steps_that_took_the_old_ones(app: App) -> None:
    taken: list[int] = []

    @app.task(retry=Retry(attempts=1))
    async def book(number: int) -> int:
        here = current()
        await here.step("reserve", taken.append, number)
        return await here.step("add", lambda: number + 1)

    job = await book.enqueue(1)
    await ran(app)
    fork = await app.jobs.fork(job, from_step="add", args=[2])
    await ran(app)
    assert (await fork.result(0), taken) == (3, [1])


async def test_a_fork_waits_for_signals_of_its_own(app: App) -> None:
    @app.task(retry=AGAIN)
    async def ask() -> list[Any]:
        here = current()
        first = await here.wait_for("a")
        await here.step("middle", int)
        return [first, await here.wait_for("b")]

    job = await ask.enqueue()
    await app.jobs.signal(job, "a", 1)
    await ran(app)
    fork = await app.jobs.fork(job, from_step="middle")
    await app.jobs.signal(fork, "b", 2)
    await ran(app)
    assert await fork.result(0) == [1, 2]
    assert (await app.jobs.get(job)).state is State.WAITING


@shows("a job that runs again from a step cancels its open children first, and calls new ones")
async def test_open_children_are_cancelled_first(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=Retry(attempts=1))
    async def child(name: str) -> str:
        here = current()
        await here.sleep(100)
        return await ledger.do(name)

    @app.task(retry=Retry(attempts=1))
    async def parent() -> list[str]:
        here = current()
        first = await here.call(child.job("first"))
        await here.step("middle", ledger.do, "middle")
        return [first, await here.call(child.job("second"))]

    job = await parent.enqueue()
    await ran(app)
    clock.advance(101)
    await ran(app)
    [open_] = (await app.jobs.list(task=child, state="ready")).records
    await app.jobs.rerun(job, from_step="middle")
    assert (await app.jobs.get(open_.id)).state is State.CANCELLED
    await ran(app)
    clock.advance(101)
    await ran(app)
    assert await job.result(0) == ["first 1", "second 1"]
    assert ledger.function_done == Counter(first=1, middle=2, second=1)


async def test_messages_of_deleted_waits_are_received_again(app: App, ledger: Ledger) -> None:
    @app.task(retry=Retry(attempts=1))
    async def read() -> list[int]:
        here, values = current(), []
        for number in range(3):
            values.append(await here.receive("numbers", returns=int))
            await here.step(f"note {number}", ledger.do, "note")
        return values

    job = await read.enqueue()
    for number in range(3):
        await app.jobs.send(job, "numbers", number)
    await ran(app)
    assert await job.result(0) == [0, 1, 2]
    await app.jobs.rerun(job, from_step="note 0")
    await ran(app)
    assert await job.result(0) == [0, 1, 2]
    fork = await app.jobs.fork(job, from_step="note 1")
    for number in (7, 8):
        await app.jobs.send(fork, "numbers", number)
    await ran(app)
    assert await fork.result(0) == [0, 1, 7]
    assert ledger.function_done == Counter(note=3 + 3 + 2)
