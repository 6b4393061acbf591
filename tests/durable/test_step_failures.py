"""A step that failed is part of the history: what the function did about its error is decided once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from tests.kit import work
from treadle import Abort, App, Retry, State, StepFailed, StepMismatch, current
from treadle.core.model import Claim, Outcome
from treadle.durable.failures import error_of as made_again
from treadle.durable.failures import failure_of
from treadle.errors import BadResult, KeyHeld, TooLarge
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)


class Declined(Exception):
    """An error with arguments that can be stored."""

    def __init__(self, code: int, why: str) -> None:
        self.code = code
        super().__init__(code, why)


class WithResponse(Exception):
    """An error whose attribute is not one of its arguments."""

    def __init__(self, text: str, *, response: object = None) -> None:
        self.response = response
        super().__init__(text)


class Odd(Exception):
    """An error whose constructor does not take its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class Saga:
    """Books parts of a trip; the last one has no room. Undoes what it has booked, in the order of booking."""

    def __init__(self, app: App, ledger: Ledger, kind: str) -> None:
        self.ledger = ledger
        run = self._async if kind == "async" else self._thread
        self.task: Any = app.task(name="trip", retry=AGAIN)(run)

    def do(self, what: str) -> str:
        return self.ledger.plain(what)

    async def _async(self) -> str:
        here, booked = current(), list[str]()
        try:
            for what in ("flight", "car", "hotel"):
                await here.step(f"book:{what}", self.do, f"book {what}")
                booked.append(what)
        except ValueError as error:
            for what in booked:
                await here.step(f"cancel:{what}", self.do, f"cancel {what}")
            raise Abort(f"no trip: {error}") from error
        return "booked"

    def _thread(self) -> str:
        here, booked = current().sync, list[str]()
        try:
            for what in ("flight", "car", "hotel"):
                here.step(f"book:{what}", self.do, f"book {what}")
                booked.append(what)
        except ValueError as error:
            for what in booked:
                here.step(f"cancel:{what}", self.do, f"cancel {what}")
            raise Abort(f"no trip: {error}") from error
        return "booked"


@shows("a saga whose undo is interrupted is undone to the end, although the failed step would succeed now")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("last", ["cancel flight", "cancel car"])
async def test_a_saga_that_is_interrupted_in_its_undo_is_undone_to_the_end(
    app: App, ledger: Ledger, kind: str, last: str
) -> None:
    """The first run ends in the undo, before its step is stored. The failing call has room in the next run."""
    saga = Saga(app, ledger, kind)
    ledger.fail["book hotel"] = 1
    ledger.fail[last] = 1
    job = await saga.task.enqueue()
    await drain(app)
    assert "no trip: book hotel" in await error_of(app, job)
    assert ledger.function_done["book hotel"] == 1
    assert ledger.function_done[last] == 2
    assert sum(ledger.function_done.values()) == 6


@shows("the error of a step that the function catches is stored before the next step runs")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_failure_is_stored_before_the_next_function_is_called(app: App, ledger: Ledger, kind: str) -> None:
    """A worker may die in the next function: its effect has happened, so the catch must be known already."""
    seen: list[list[str]] = []

    async def names() -> None:
        seen.append([step.name for step in (await app.jobs.history("j")).steps])

    loop = asyncio.get_running_loop()

    def names_here() -> None:
        asyncio.run_coroutine_threadsafe(names(), loop).result()

    async def t() -> None:
        with suppress(ValueError):
            await current().step("a", ledger.do, "a")
        await current().step("b", names)

    def thread() -> None:
        with suppress(ValueError):
            current().sync.step("a", ledger.plain, "a")
        current().sync.step("b", names_here)

    task: Any = app.task(name="t")(t if kind == "async" else thread)
    ledger.fail["a"] = 1
    await task.options(id="j").enqueue()
    await drain(app)
    assert seen == [["a"]]


@pytest.mark.parametrize("what", ["sleep", "wait", "once"])
async def test_a_catch_is_decided_by_a_sleep_a_wait_and_a_lock_too(
    app: App, clock: HandClock, ledger: Ledger, what: str
) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        here = current()
        try:
            await here.step("a", ledger.do, "a")
        except ValueError:
            if what == "sleep":
                await here.sleep(60)
            elif what == "wait":
                await here.wait_for("go", timeout=60)
            else:
                async with here.once("lock"):
                    ledger.function_done["locked"] += 1
                ledger.plain("end")
            return "caught"
        return "succeeded"

    ledger.fail["a"] = ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    if what == "wait":
        await app.jobs.signal(job, "go", 1)
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == "caught"
    assert ledger.function_done["a"] == 1


async def test_an_error_that_leaves_the_function_is_not_stored(app: App, ledger: Ledger) -> None:
    """The attempt is repeated, and calls the function again; also if other steps run at the same time."""

    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        here = current()
        return list(await asyncio.gather(here.step("a", ledger.do, "a"), here.step("b", ledger.do, "b")))

    ledger.fail["a"] = 2
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["a 3", "b 1"]


async def test_a_task_that_nothing_awaited_yet_has_decided_nothing(app: App, ledger: Ledger) -> None:
    """Another step is taken meanwhile. Then the error leaves the function, so the attempt is repeated."""

    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        here = current()
        first = asyncio.ensure_future(here.step("a", ledger.do, "a"))
        await asyncio.wait([first])
        second = await here.step("b", ledger.do, "b")
        return [await first, second]

    ledger.fail["a"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["a 2", "b 1"]


async def test_an_error_of_a_branch_is_stored_once_it_has_reached_the_function(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        here = current()

        async def branch(name: str) -> str:
            return await here.step(name, ledger.do, name)

        seen = await asyncio.gather(branch("a"), branch("b"), return_exceptions=True)
        names = [type(one).__name__ for one in seen]
        names.append(await here.step("end", ledger.do, "end"))
        ledger.plain("after")
        return names

    ledger.fail["a"] = ledger.fail["after"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["ValueError", "str", "end 1"]
    assert ledger.function_done["a"] == 1


async def test_an_error_of_a_task_group_is_stored_once_the_function_continues(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        here = current()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(here.step("a", ledger.do, "a"))
            seen = "succeeded"
        except* ValueError:
            seen = await here.step("b", ledger.do, "b")
        ledger.plain("end")
        return seen

    ledger.fail["a"] = ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == "b 1"
    assert ledger.function_done == {"a": 1, "b": 1, "end": 2}


@shows("an error that is stored in the history and leaves the function fails the job at once")
async def test_a_stored_error_that_leaves_the_function_is_not_met_five_times(app: App, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> None:
        try:
            await current().step("a", ledger.do, "a")
        finally:
            await current().step("release", ledger.do, "release")

    ledger.fail["a"] = 5
    job = await t.enqueue()
    assert await drain(app) == 1
    row = await app.jobs.get(job)
    assert (row.state, row.reason, row.attempt) == (State.FAILED, "aborted", 1)
    assert (row.error or "").startswith("ValueError: a")
    assert "ledger.do" in (row.error or "")  # with the traceback of the error
    assert ledger.function_done == {"a": 1, "release": 1}


@shows("a later run raises the error of a step again with its class and arguments, or StepFailed")
async def test_a_later_run_raises_the_same_error(app: App, ledger: Ledger) -> None:
    seen: list[list[tuple[type, object]]] = []
    errors: dict[str, Exception] = {
        "declined": Declined(7, "no money"),
        "file": FileNotFoundError(2, "no such file", "orders.csv"),
        "ours": KeyHeld("k", "j"),
        "response": WithResponse("404", response=object()),
        "odd": Odd(code=3),
    }

    async def fail(name: str) -> None:
        raise errors[name]

    @app.task(retry=AGAIN)
    async def t() -> None:
        run: list[tuple[type, object]] = []
        for name in errors:
            try:
                await current().step(name, fail, name)
            except Exception as error:
                run.append((type(error), [*error.args, getattr(error, "response", "none")]))
        seen.append(run)
        await current().step("end", ledger.do, "end")
        ledger.plain("after")

    ledger.fail["after"] = 1
    job = await t.enqueue()
    await drain(app)
    await job.result(0)
    assert seen[0] == seen[1]
    assert [kind for kind, _ in seen[0]] == [Declined, FileNotFoundError, KeyHeld, WithResponse, Odd]


def test_errors_are_stored_by_their_names_and_arguments() -> None:
    for error in (Declined(7, "no"), KeyError("a"), TimeoutError(), KeyHeld("a", "b"), OSError(2, "no", "f")):
        failure, shown = failure_of("s", error)
        again = made_again("s", failure)
        assert shown is error
        assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))

    class Local(Exception):
        pass

    group = ExceptionGroup("g", [Odd(code=1)])
    for error in (Local("x"), ValueError("x" * 3_000), ValueError(object()), group):
        failure, shown = failure_of("s", error)
        again = made_again("s", failure)
        assert type(again) is type(shown) is StepFailed
        assert again.args == shown.args
        assert isinstance(again, StepFailed)
        assert again.kind.rpartition(".")[2] == type(error).__name__


async def test_an_error_that_cannot_be_stored_leaves_the_function_as_it_is(app: App) -> None:
    kinds: list[type] = []

    def on_error(error: BaseException, info: object) -> None:
        kinds.append(type(error))

    async def fail() -> None:
        raise Odd(code=3)

    @app.task(retry=ONCE, on_error=on_error)
    async def t() -> None:
        await current().step("a", fail)

    job = await t.enqueue()
    await drain(app)
    assert kinds == [Odd]
    assert "Odd: code 3" in (await error_of(app, job)).splitlines()[0]


async def test_a_step_that_the_function_cuts_off_is_cut_off_again(app: App, ledger: Ledger) -> None:
    """A later run waits until the function cuts it off, as the first one did."""
    began, begins = list[int](), asyncio.Event()

    async def slow() -> str:
        began.append(1)
        begins.set()
        if len(began) == 1:
            await asyncio.Event().wait()
        return "slow"

    async def quick() -> str:
        await begins.wait()
        return "quick"

    @app.task(retry=AGAIN)
    async def t() -> str:
        here = current()
        tasks = [asyncio.ensure_future(here.step("slow", slow)), asyncio.ensure_future(here.step("quick", quick))]
        done, open_ones = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in open_ones:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one
        winner = next(iter(done)).result()
        await here.step(f"notify {winner}", ledger.do, "notify")
        ledger.plain("end")
        return winner

    ledger.fail["end"] = 1
    job = await t.enqueue()
    async with asyncio.timeout(30):
        await drain(app)
    assert await job.result(0) == "quick"
    assert len(began) == 1


@shows("a dead job that is retried calls a failed step again if the function did not go on from its failure")
async def test_a_reopened_job_tries_a_step_again_that_nothing_followed(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> str:
        here = current()
        with suppress(ValueError):
            await here.step("caught", ledger.do, "caught")
        return await here.step.options(retry=ONCE)("last", ledger.do, "last")

    ledger.fail["caught"] = ledger.fail["last"] = 1
    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "last 2"
    assert ledger.function_done == {"caught": 1, "last": 2}


# --- results that cannot be stored


@pytest.mark.parametrize("result", ["x" * 1_100_000, object()])
async def test_a_result_that_cannot_be_stored_is_a_failure_of_its_step(app: App, result: object) -> None:
    charged: list[int] = []

    def charge() -> Any:
        charged.append(1)
        return result

    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            await current().step("charge", charge)
        except (BadResult, TooLarge) as error:
            await current().step("note", charged.append, 2)
            if current().attempt == 1:
                raise OSError from error
            return type(error).__name__
        return "stored"

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ("TooLarge" if isinstance(result, str) else "BadResult")
    assert charged == [1, 2]


# --- arguments


@shows("a stored step whose arguments are others in a later run is refused")
async def test_other_arguments_of_a_stored_step_are_refused(app: App) -> None:
    paid, staff = list[str](), ["ada", "bob", "eve"]

    async def pay(name: str) -> None:
        paid.append(name)

    @app.task(retry=AGAIN)
    async def payroll() -> None:
        for name in list(staff):
            await current().step("pay", pay, name)
            if name == "bob":
                staff.insert(0, "zoe")
                raise OSError("connection lost")

    job = await payroll.enqueue()
    await drain(app)
    assert "the arguments of step 'pay' changed" in await error_of(app, job)
    assert StepMismatch.__name__ in await error_of(app, job)
    assert paid == ["ada", "bob"]


async def test_arguments_that_are_equal_in_another_order_are_the_same(app: App, ledger: Ledger) -> None:
    async def take(*args: object, **named: object) -> None: ...

    @app.task(retry=AGAIN)
    async def t() -> None:
        turn = current().attempt
        order = ["a", "b", "c"] if turn == 1 else ["c", "b", "a"]
        await current().step("s", take, dict.fromkeys(order), set(order), object(), **dict.fromkeys(order))
        await current().step("t", take, dict.fromkeys(order), set(order), **dict.fromkeys(order))
        ledger.plain("end")

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) is None


# --- order of encounter, and steps that nothing awaits


@shows("one step name may be used in several tasks of a run that follow each other")
async def test_one_name_in_tasks_one_after_the_other(app: App, ledger: Ledger) -> None:
    async def tool(name: str) -> str:
        return await current().step("tool", ledger.do, name)

    @app.task(retry=AGAIN)
    async def agent() -> list[str]:
        seen = []
        for turn in range(2):
            await current().step("model", ledger.do, f"model {turn}")
            seen += [await asyncio.ensure_future(tool(f"{turn}{part}")) for part in "ab"]
        ledger.plain("end")
        return seen

    ledger.fail["end"] = 1
    job = await agent.enqueue()
    await drain(app)
    assert await job.result(0) == ["0a 1", "0b 1", "1a 1", "1b 1"]


async def test_one_name_in_tasks_that_take_turns_is_refused(app: App, ledger: Ledger) -> None:
    """Their requests do not overlap, but the order may be another one in a later run."""

    @app.task(retry=ONCE)
    async def t() -> None:
        turns = [asyncio.Event(), asyncio.Event()]

        async def branch(number: int) -> None:
            if number:
                await turns[0].wait()
            await current().step("same", ledger.do, f"{number}")
            turns[0].set()
            if not number:
                await turns[1].wait()

        tasks = [asyncio.ensure_future(branch(number)) for number in range(2)]
        try:
            await tasks[1]
        finally:
            turns[1].set()
            await tasks[0]

    job = await t.enqueue()
    await drain(app)
    assert "give each its own name" in await error_of(app, job)


@shows("a step, a sleep or a wait that is never awaited fails the job")
@pytest.mark.parametrize("what", ["step", "sleep", "wait"])
async def test_a_forgotten_await_fails_the_job(app: App, ledger: Ledger, what: str) -> None:
    @app.task
    async def t() -> str:
        here = current()
        if what == "step":
            here.step("x", ledger.do, "x")  # noqa: RUF100
        elif what == "sleep":
            here.sleep(60, name="x")
        else:
            here.wait_for("x")
        await here.step("other", ledger.do, "other")
        return "shipped"

    job = await t.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, row.attempt, row.reason) == (State.FAILED, 1, "code")
    assert "x': was never awaited" in (row.error or "")


# --- runs that are cancelled


async def test_a_run_that_stops_decides_nothing(app: App, ledger: Ledger) -> None:
    """The worker stops in a step; a step in a `finally` does not run, as it could not be stored. The next run takes
    both."""
    began = asyncio.Event()

    async def slow() -> str:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return "done"

    @app.task(retry=AGAIN)
    async def t() -> str:
        here = current()
        try:
            await here.step("slow", slow)
            return await here.step("more", ledger.do, "more")
        finally:
            await here.step("release", ledger.do, "release")

    job = await t.enqueue()
    async with work(app, grace=0):
        await began.wait()
    await drain(app)
    assert await job.result(0) == "more 1"
    assert ledger.function_done["release"] == 1


async def test_a_history_of_before_is_refused_with_a_sentence(app: App, ledger: Ledger) -> None:
    """Until November 2026 the entry behind a failed step said which error it raised, and the failure had no entry."""

    @app.task(retry=ONCE)
    async def t() -> None:
        with suppress(ValueError):
            await current().step("a", ledger.do, "a")
        await current().step("b", ledger.do, "b")

    job = await t.enqueue()
    [row] = (await app.storage.claim(Claim(worker="old#1", limit=1))).records
    pairs = (("b", '{"after":"a!ValueError","value":"b"}'),)
    old = Outcome(id=row.id, version=row.version, state=State.READY, checkpoints=pairs)
    await app.storage.settle([old])
    await drain(app)
    assert "the stored run took it after 'a!ValueError'" in await error_of(app, job)
