"""Steps: each is run once in the life of a job, in an order that is checked, within limits."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, Receipt, error_of
from tests.kit import Spy, Told, work
from tests.waiting import Signal
from tests.worker import process_tasks
from treadle import (
    App,
    BadOption,
    BadStep,
    Retry,
    Sizes,
    State,
    StepMismatch,
    TooLarge,
    at_least,
    current,
    flow,
)
from treadle.core.model import HeartbeatResult
from treadle.errors import BadResult, NestedTransaction, NotRunning
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle.worker.state import WorkerState
from treadle_testkit.shows import shows


@shows("a worker keeps nothing of the functions of steps that it has run")
@pytest.mark.parametrize("kind", [str, list[str], "str", "list[Receipt]", "Unknown", Any])
async def test_a_function_that_is_defined_in_its_task_is_not_kept(app: App, kind: Any) -> None:
    """The worker would grow with each run."""
    made: list[weakref.ref[Any]] = []

    @app.task(name="order")
    async def order() -> None:
        async def charge() -> Any:
            return None if kind is Any else [] if "list" in str(kind) else "paid"

        charge.__annotations__["return"] = kind
        made.append(weakref.ref(charge))
        await current().step("charge", charge)

    jobs = [await order.enqueue() for _ in range(2)]
    assert await drain(app) == 2
    assert [await job.result(0) for job in jobs] == [None, None]
    gc.collect()
    assert [each() for each in made] == [None, None]


@shows("a step that has succeeded does not run again in later attempts")
async def test_a_step_is_run_once_in_the_life_of_a_job(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def order() -> list[str]:
        done = [
            await current().step("reserve", ledger.do, "reserve"),
            await current().step("charge", ledger.do, "charge"),
        ]
        ledger.plain("end")
        return done

    ledger.fail["charge"] = ledger.fail["end"] = 2
    job = await order.enqueue()
    assert await drain(app) == 5
    assert await job.result(0) == ["reserve 1", "charge 3"]
    assert ledger.function_done == {"reserve": 1, "charge": 3, "end": 3}


async def test_a_plain_function_is_a_step_too_and_does_not_run_on_the_loop(app: App, ledger: Ledger) -> None:
    def where(name: str) -> bool:
        ledger.plain(name)
        return threading.current_thread() is threading.main_thread()

    @app.task(retry=AGAIN)
    async def t() -> bool:
        found = await current().step("where", where, "where")
        ledger.plain("end")
        return found

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) is False
    assert ledger.function_done["where"] == 1


@shows("functions in threads take steps")
async def test_functions_in_threads_take_steps_too(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    def t() -> list[str]:
        here = current().sync
        done = [here.step("a", ledger.plain, "a"), here.step("a", ledger.plain, "a")]
        ledger.plain("end")
        return done

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["a 1", "a 2"]
    assert ledger.function_done["a"] == 2


async def test_the_first_run_and_a_later_one_see_the_same_values(app: App) -> None:
    seen: list[object] = []

    async def pay() -> Receipt:
        return Receipt(7, datetime(2026, 1, 2, tzinfo=UTC))

    def pair() -> object:
        return (1, 2)

    @app.task(retry=AGAIN)
    async def t() -> None:
        here = current()
        seen.append((await here.step("pay", pay), await here.step("pair", pair)))
        if here.attempt == 1:
            raise ValueError

    await t.enqueue()
    await drain(app)
    assert seen[0] == seen[1] == (Receipt(7, datetime(2026, 1, 2, tzinfo=UTC)), (1, 2))


async def test_a_task_is_a_step_as_a_function(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def t() -> int:
        return await current().step("double", double, 21)

    job = await t.enqueue()
    assert await drain(app) == 1
    assert await job.result(0) == 42


@shows("a step whose value cannot be stored fails the attempt")
async def test_a_step_value_that_cannot_be_stored_fails_the_run(app: App) -> None:
    async def wrong() -> int:
        return "no number"  # type: ignore[return-value]

    @app.task(retry=Retry(attempts=1))
    async def t() -> None:
        await current().step("wrong", wrong)

    job = await t.enqueue()
    await drain(app)
    assert BadResult.__name__ in await error_of(app, job)
    assert "step 'wrong'" in await error_of(app, job)


async def test_a_loop_numbers_its_steps(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        found = [await current().step("page", ledger.do, "page") for _ in range(3)]
        ledger.plain("end")
        return found

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["page 1", "page 2", "page 3"]
    assert [step.name for step in (await app.jobs.history(job)).steps] == ["page", "page#2", "page#3"]


@shows("steps of one job run concurrently")
async def test_steps_run_side_by_side(app: App, spy: Spy, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        found = await asyncio.gather(*(current().step("part", ledger.do, f"part {n}") for n in range(5)))
        found.append(await current().step("sum", ledger.do, "sum"))
        ledger.plain("end")
        return found

    ledger.fail["part 2"] = ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["part 0 1", "part 1 1", "part 2 2", "part 3 1", "part 4 1", "sum 1"]
    assert ledger.function_done["part 4"] == 1


async def test_branches_side_by_side_keep_their_own_order(app: App, ledger: Ledger) -> None:
    order: list[str] = []

    @app.task(retry=AGAIN)
    async def t() -> list[list[str]]:
        async def branch(n: int, gate: asyncio.Event, other: asyncio.Event) -> list[str]:
            first = await current().step(f"first {n}", ledger.do, f"first {n}")
            if current().attempt == 1 + n:
                await gate.wait()
            second = await current().step(f"second {n}", ledger.do, f"second {n}")
            order.append(second)
            other.set()
            return [first, second]

        one, two = asyncio.Event(), asyncio.Event()
        found = await asyncio.gather(branch(0, one, two), branch(1, two, one))
        await current().step("end", ledger.do, "end")
        ledger.plain("after")
        return found

    ledger.fail["after"] = 2
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == [["first 0 1", "second 0 1"], ["first 1 1", "second 1 1"]]


async def test_one_name_in_two_branches_is_refused(app: App, ledger: Ledger) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t() -> None:
        async def branch(n: int) -> None:
            await current().step("same", ledger.do, f"{n}")

        await asyncio.gather(branch(0), branch(1))

    job = await t.enqueue()
    await drain(app)
    assert "give each its own name" in await error_of(app, job)


async def test_a_job_may_take_another_step_after_one_that_raised(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            found = await current().step("card", ledger.do, "card")
        except ValueError:
            found = await current().step("invoice", ledger.do, "invoice")
        await current().step("mail", ledger.do, "mail")
        ledger.plain("end")
        return found

    ledger.fail["card"] = ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == "invoice 1"
    assert ledger.function_done == {"card": 1, "invoice": 1, "mail": 1, "end": 2}


class Versions:
    """A task whose function changes between two runs, as after a deploy."""

    def __init__(self, app: App, ledger: Ledger) -> None:
        self.steps: list[str] = []
        self.ledger = ledger
        self.task = app.task(name="deployed", retry=Retry(attempts=2, base=0))(self._run)

    async def _run(self) -> None:
        for name in self.steps:
            if name == "fail":
                self.steps = self.after
                raise ValueError("the first version ends here")
            await current().step(name, self.ledger.do, name)

    after: list[str]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (["a", "b"], ["b", "a"], "this run takes step 'b' first, but the stored run took it after 'a'"),
        (
            ["a", "b"],
            ["renamed", "b"],
            "this run takes step 'renamed' first, but the stored run took 'a' at this point",
        ),
        (["a", "b"], ["b"], "this run takes step 'b' first, but the stored run took it after 'a'"),
        (["a", "b"], ["a", "c", "b"], "this run takes step 'c' after 'a', but the stored run took 'b' at this point"),
    ],
)
@shows("a step that was renamed, removed or swapped is refused before its function runs")
async def test_other_steps_than_the_job_began_with(
    app: App, ledger: Ledger, before: list[str], after: list[str], says: str
) -> None:
    versions = Versions(app, ledger)
    versions.steps, versions.after = [*before, "fail"], after
    job = await versions.task.enqueue()
    await drain(app)
    error = await error_of(app, job)
    assert StepMismatch.__name__ in error
    assert says in error
    assert ledger.function_done == dict.fromkeys(before, 1)  # no step ran twice under another name


async def test_more_steps_at_the_end_are_no_mismatch(app: App, ledger: Ledger) -> None:
    versions = Versions(app, ledger)
    versions.steps, versions.after = ["a", "fail"], ["a", "b"]
    job = await versions.task.enqueue()
    await drain(app)
    await job.result(0)
    assert ledger.function_done == {"a": 1, "b": 1}


@pytest.mark.parametrize("name", ["", "a#2", "a\nb", "x" * 256, "a>", 3])
async def test_an_invalid_step_name_is_refused(app: App, ledger: Ledger, name: Any) -> None:
    @app.task
    async def t() -> str:
        with pytest.raises(BadStep):
            current().step(name, ledger.do, "a")
        with pytest.raises(BadStep, match="expected a function"):
            await current().step("a", ledger.do("a"))  # type: ignore[call-overload]
        return "refused"

    job = await t.enqueue()
    with pytest.warns(RuntimeWarning, match="never awaited"):
        await drain(app)
    assert await job.result(0) == "refused"


async def test_stored_steps_are_bounded_in_number_and_size(spy: Spy, clock: HandClock, ledger: Ledger) -> None:
    async def text(size: int) -> str:
        ledger.plain("text")
        return "x" * size

    async with App(storage=spy, clock=clock, sizes=Sizes(step=1000, checkpoints=2950, steps=6)) as app:

        @app.task
        async def t() -> str:
            here = current()
            with pytest.raises(TooLarge, match="the checkpoint of step 'big' of job"):
                await here.step("big", text, 1000)
            await here.step("a", text, 900)
            await here.step("b", text, 900)
            with pytest.raises(TooLarge, match="the sum of the checkpoints of job"):
                await here.step("c", text, 900)
            await here.step("d", text, 9)
            await here.step("e", text, 9)
            ran = ledger.function_done["text"]
            with pytest.raises(TooLarge, match=r"the list of steps of job .* is 7 long, the limit is 6"):
                await here.step("f", text, 9)
            assert ledger.function_done["text"] == ran  # this step is stored already
            return "all refused"

        job = await t.enqueue()
        await drain(app)
        assert await job.result(0) == "all refused"


def test_sizes_only_become_smaller() -> None:
    with pytest.raises(BadOption, match=r"sizes.steps.: expected 1 to 10,000, found 10001"):
        Sizes(steps=10_001)
    with pytest.raises(BadOption, match=r"sizes.step.: expected 1 to 1,048,576 bytes"):
        Sizes(step=0)


async def test_one_call_per_step_and_each_is_written_once(app: App, spy: Spy, ledger: Ledger) -> None:
    sent: list[int] = []
    heartbeat = spy.heartbeat

    async def counted(worker: Any, renewals: Any, lease: float) -> HeartbeatResult:
        sent.append(sum(len(renewal.checkpoints) for renewal in renewals))
        return await heartbeat(worker, renewals, lease)

    spy.heartbeat = counted  # type: ignore[method-assign]

    @app.task
    async def t() -> None:
        for n in range(20):
            await current().step("n", ledger.do, f"{n}")

    await t.enqueue()
    await drain(app)
    assert sum(sent) == 20
    assert len([checkpoints for checkpoints in sent if checkpoints]) == 20


async def test_a_step_that_was_not_saved_is_sent_again(app: App, spy: Spy, ledger: Ledger) -> None:
    """`step` returns when the storage has stored it. An answer that says only that the lease was renewed is not
    enough."""
    heartbeat, sent = spy.heartbeat, list[int]()

    async def busy(worker: Any, renewals: Any, lease: float) -> HeartbeatResult:
        sent.append(sum(len(renewal.checkpoints) for renewal in renewals))
        if sum(sent) in (1, 2):
            return HeartbeatResult(unsaved=frozenset(renewal.id for renewal in renewals))
        return await heartbeat(worker, renewals, lease)

    spy.heartbeat = busy  # type: ignore[method-assign]

    @app.task(retry=AGAIN)
    async def t() -> str:
        receipt = await current().step("charge", ledger.do, "charge")
        assert [step.name for step in (await app.jobs.history(current().id)).steps] == ["charge"]
        ledger.plain("end")
        return receipt  # type: ignore[no-any-return]

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == "charge 1"
    assert ledger.function_done == {"charge": 1, "end": 2}
    assert sum(sent) == 3


async def test_steps_of_many_jobs_share_a_call(app: App, spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, ends = list[int](), Signal().after(monkeypatch, WorkerState, "end")
    heartbeat = spy.heartbeat
    meeting = asyncio.Barrier(10)

    async def counted(worker: Any, renewals: Any, lease: float) -> HeartbeatResult:
        sent.append(sum(len(renewal.checkpoints) for renewal in renewals))
        return await heartbeat(worker, renewals, lease)

    spy.heartbeat = counted  # type: ignore[method-assign]

    @app.task
    async def t() -> None:
        await current().step("meet", meeting.wait)

    await app.enqueue([t.job() for _ in range(10)])
    async with work(app, concurrency=10) as worker:
        await ends.until(lambda: not worker.running and sum(sent) >= 10, "the end of all runs")
    assert sum(sent) == 10
    assert len([checkpoints for checkpoints in sent if checkpoints]) <= 2


@shows("`step_key()` is the same in every attempt and after a retry")
async def test_a_key_for_effects_outside(app: App, ledger: Ledger) -> None:
    keys: list[str] = []

    async def charge() -> None:
        keys.append(current().step_key())
        ledger.plain("charge")

    @app.task(retry=Retry(attempts=2, base=0))
    async def t() -> None:
        with pytest.raises(BadStep, match="give the name of the step"):
            current().step_key()
        for _ in range(2):
            await current().step("charge", charge)
        keys.append(current().step_key("charge#2"))

    ledger.fail["charge"] = 3
    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert await app.jobs.retry(job) == 1
    await drain(app)
    assert keys[:4] == [f"{job.id}:charge"] * 4
    assert keys[4:] == [f"{job.id}:charge#2"] * 2


@shows("a dead job that is retried keeps its steps")
async def test_a_retried_dead_job_finds_its_steps(app: App, ledger: Ledger) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t() -> str:
        found = await current().step("a", ledger.do, "a")
        ledger.plain("end")
        return found

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "a 1"
    assert ledger.function_done["a"] == 1


async def test_outside_of_a_job_and_of_a_run(app: App, told: Told, ledger: Ledger) -> None:
    left: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    @app.task
    async def t() -> None:
        async def late() -> None:
            await go.wait()
            await current().step("late", ledger.do, "late")

        left.append(asyncio.create_task(late()))

    await t.enqueue()
    async with work(app):
        await told.until("succeeded")
        go.set()
        with pytest.raises(NotRunning, match="has ended"):
            await left[0]


async def test_a_thread_cannot_await_and_a_coroutine_cannot_block(app: App, ledger: Ledger) -> None:
    @app.task
    async def on_the_loop() -> str:
        with pytest.raises(BadStep, match="in threads"):
            current().sync.sleep(1)
        return "refused"

    @app.task
    def in_a_thread() -> str:
        with pytest.raises(BadStep, match=r"current\(\).sync"):
            asyncio.run(current().step("a", ledger.plain, "a"))
        with pytest.raises(BadStep, match="async function"):
            current().sync.step("a", ledger.do, "a")
        return "refused"

    jobs = await app.enqueue(on_the_loop.job(), in_a_thread.job())
    await drain(app)
    assert [await job.result(0) for job in jobs] == ["refused", "refused"]


async def test_steps_come_before_the_transaction(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(retry=Retry(attempts=1))
    async def t() -> str:
        here = current()
        async with here.transaction():
            for late in (lambda: here.step("a", str), lambda: here.once("a"), lambda: here.sync):
                with pytest.raises(NestedTransaction, match="before current"):
                    late()
            with pytest.raises(NestedTransaction, match="before current"):
                await here.sleep(1)
        return here.step_key("a")

    async with app:
        job = await t.enqueue()
        await drain(app)
        assert await job.result(0) == f"{job.id}:a"


async def test_processes_take_no_steps(app: App) -> None:
    task = app.task(name="t", kind="process", retry=Retry(attempts=1))(process_tasks.takes_a_step)
    job = await task.enqueue()
    await drain(app)
    assert "do not work in a function of kind=" in await error_of(app, job)


async def test_a_parent_takes_steps_before_it_fans_out(app: App, clock: HandClock, ledger: Ledger) -> None:
    """The plan of a flow is stored next to the steps, under names of its own."""

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent() -> Any:
        await current().step("a", ledger.do, "a")
        return flow(*(child.options(delay=60).job(n) for n in range(3)), when=at_least(2))

    job = await parent.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    assert "treadle:plan" in dict((await app.jobs.get(job)).checkpoints)
    await app.jobs.retry(job)
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done["a"] == 1


async def test_checkpoints_of_an_abandoned_branch_are_stored_with_the_plan(storage: Storage, ledger: Ledger) -> None:
    """The storage takes no step, the branch is given up, and the function returns a flow: both are stored with it."""
    spy, done = Spy(storage), asyncio.Event()
    async with App(storage=spy, random=lambda: 0.0) as app:

        @app.task
        async def child() -> int:
            return 1

        async def do() -> str:
            done.set()
            return await ledger.do("a")

        @app.task
        async def parent() -> Any:
            spy.away["heartbeat"] = 1_000_000
            branch = asyncio.ensure_future(current().step("a", do))
            await done.wait()
            await asyncio.sleep(0)
            branch.cancel()
            return flow(child.job(), child.job(), when=at_least(1))

        job = await parent.enqueue()
        async with work(app, recovery=Retry(base=0.001, max=0.001)):
            await job.ended(30)
            checkpoints = dict((await app.jobs.get(job)).checkpoints)
            assert {"a", "treadle:plan"} <= set(checkpoints)
            spy.away.clear()
