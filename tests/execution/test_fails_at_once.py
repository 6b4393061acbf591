"""Errors that the same code meets again for certain: the job fails at once, and no effect is repeated.

The table in docs/guides/failing.md names them; each of its rows has a test here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from tests.kit import work
from tests.worker import process_tasks
from treadle import (
    App,
    BadArgument,
    BadResult,
    Defer,
    Job,
    Key,
    Retry,
    Sizes,
    State,
    current,
    depends,
    errors,
    flow,
    gather,
)
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.model import Claim, NewJob, Outcome, Record
from treadle.errors import TreadleError
from treadle.execution.runner import SystemTask
from treadle.policy import judge
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "failing.md"
TWICE = Retry(attempts=2, base=0)


class Receipt:
    """No annotation names it, so it cannot be stored."""


class Effects:
    """An app on one storage, with tasks whose effects are counted."""

    def __init__(self, app: App) -> None:
        self.app, self.count = app, 0

    async def row_of(self, body: Callable[..., Any], *args: Any, **options: Any) -> Record:
        """The row of a job of this function, after all its attempts."""
        task: Any = self.app.task(**{"name": "t", "retry": TWICE, **options})(body)
        job = await task.enqueue(*args)
        await drain(self.app)
        return await self.app.jobs.get(job)

    def charge(self, result: Any = None) -> Any:
        self.count += 1
        return result


Case = Callable[[Effects], Awaitable[Record]]
CASES: dict[str, tuple[Case, str]] = {}


def row(words: str, text: str) -> Callable[[Case], Case]:
    """The case of one row of the table: its first words, and a part of the stored error."""

    def add(case: Case) -> Case:
        CASES[words] = case, text
        return case

    return add


@row("stored arguments that do not fit the function", "expected int")
async def arguments(it: Effects) -> Record:
    async def t(n: int) -> None:
        it.charge()

    it.app.task(name="t", retry=TWICE)(t)
    job = await it.app.enqueue(it.app.stub("t").job("no number"))
    await drain(it.app)
    assert it.count == 0
    return await it.app.jobs.get(job)


@row("a result that cannot be stored, or is too large", "expected int, got None; return a value")
async def result(it: Effects) -> Record:
    async def t() -> int:
        return it.charge()  # type: ignore[no-any-return]

    found = await it.row_of(t)
    assert it.count == 1
    return found


@row("a step whose result cannot be stored, or is too large", "store the data elsewhere and return a reference")
async def step(it: Effects) -> Record:
    async def t() -> None:
        await current().step("charge", it.charge, "x" * 1_100_000)

    found = await it.row_of(t)
    assert it.count == 1
    await it.app.jobs.retry(found)
    await drain(it.app)
    assert it.count == 1  # the failure is stored: also an operator's retry does not repeat the effect
    return await it.app.jobs.get(found)


@row("a returned list of jobs", "the result is a list of jobs: to run them as children of this job, return flow(*jobs)")
async def list_of_jobs(it: Effects) -> Record:
    child = it.app.task(name="child")(it.charge)

    async def t() -> Any:
        it.charge()
        return [child.job(), child.job()]

    found = await it.row_of(t)
    assert it.count == 1
    return found


@row("returned jobs that belong to another app, or cannot be combined", "belongs to another app")
async def of_another_app(it: Effects) -> Record:
    foreign = App("memory://").task(name="foreign")(it.charge)

    async def t() -> Any:
        it.charge()
        return foreign.job()

    found = await it.row_of(t)
    assert it.count == 1
    return found


@row("returned jobs that the storage refuses", "is held by job")
async def refused(it: Effects) -> Record:
    @it.app.task(name="child")
    async def child() -> None: ...

    await child.options(key="taken", delay=600).enqueue()

    async def t() -> Any:
        it.charge()
        return flow(child.options(key=Key("taken", conflict="raise")).job())

    found = await it.row_of(t)
    assert it.count == 1
    return found


@row("other steps than those of the run that began the job", "began with other code")
async def other_steps(it: Effects) -> Record:
    async def t() -> None:
        await current().step(f"step {current().attempt}", int)
        it.charge()
        raise ValueError("once")

    found = await it.row_of(t, retry=Retry(attempts=5, base=0))
    assert it.count == 1
    assert found.attempt == 2
    return found


@row("a step, a sleep or a wait that no later run could repeat", "async with current().timeout(...)")
async def bad_step(it: Effects) -> Record:
    async def t() -> None:
        async with asyncio.timeout(5):
            await current().sleep(60)

    return await it.row_of(t)


@row("jobs of different apps, or enqueued jobs", "belongs to another app than the specs before it; enqueue it there")
async def combined(it: Effects) -> Record:
    child, foreign = it.app.task(name="child")(it.charge), App("memory://").task(name="foreign")(it.charge)

    async def t() -> Any:
        it.charge()
        return flow(child.job(), foreign.job())

    found = await it.row_of(t)
    assert it.count == 1
    return found


@row("more steps than a job may have", "the list of steps")
async def too_many_steps(it: Effects) -> Record:
    async def t() -> None:
        for _ in range(1_001):
            await current().step("one", it.charge)

    it.app._core.sizes = Sizes(steps=3)
    found = await it.row_of(t)
    assert it.count == 3
    return found


@row("a call that needs a running job", "current()")
async def not_running(it: Effects) -> Record:
    def t() -> None:
        Context().run(current)

    return await it.row_of(t)


@row("a task, dependency, codec, URL or transaction that never works", "this app has no task 'nobody'")
async def unknown_task(it: Effects) -> Record:
    async def t() -> None:
        raise errors.UnknownTask("nobody")

    return await it.row_of(t)


@row("a signal that the other job has received already", "the first value stays")
async def signalled(it: Effects) -> Record:
    @it.app.task(name="other")
    async def other() -> None:
        await current().wait_for("go")

    waits = await other.options(delay=60).enqueue()
    await it.app.jobs.signal(waits, "go")

    async def t() -> None:
        await it.app.jobs.signal(waits, "go")

    return await it.row_of(t)


@row("a call with wrong values, which may come from outside", "expected int")
async def a_call(it: Effects) -> Record:
    @it.app.task(name="child")
    async def child(n: int) -> None: ...

    async def t() -> None:
        await child.enqueue("x")  # type: ignore[arg-type]

    return await it.row_of(t)


@row("the state of other jobs, keys and queues, which may change", "is held by job")
async def held(it: Effects) -> Record:
    @it.app.task(name="child")
    async def child() -> None: ...

    await child.options(key="taken", delay=600).enqueue()

    async def t() -> None:
        await child.options(key=Key("taken", conflict="raise")).enqueue()

    return await it.row_of(t)


@row("another job that did not succeed, or whose result it cannot read", "as stored: expected int")
async def unreadable(it: Effects) -> Record:
    @it.app.task(name="text")
    async def text() -> str:
        return "seven"

    job = await text.enqueue()
    await drain(it.app)

    @it.app.task(name="number")
    async def number() -> int:
        return 7

    async def t() -> Any:
        return await Job[Any, Any](job.id, "number", it.app._core.client, number._core.signature.decode_result).result(
            0
        )

    return await it.row_of(t)


@row("a storage that is away, full, locked, moved or not ready", "cannot be reached")
async def away(it: Effects) -> Record:
    async def t() -> None:
        raise errors.StorageUnavailable("cannot be reached")

    return await it.row_of(t)


@row("a process that died, or the exception of a function in a process", "died with signal")
async def process_died(it: Effects) -> Record:
    return await it.row_of(process_tasks.struck, 9, kind="process")


@row("a resource that does not open", "did not open")
async def resource(it: Effects) -> Record:
    def broken() -> int:
        it.charge()
        raise ConnectionError("did not open")

    async def t(n: int = depends(broken)) -> None: ...

    found = await it.row_of(t)
    assert it.count == 2
    return found


def table() -> dict[str, tuple[list[str], str]]:
    """The rows of the table: the errors of each, and how the job fails."""
    text = GUIDE.read_text()
    rows = re.findall(r"^\| (.+?) \| (`.+`) \| (.+?) \|$", text.partition("## Errors that no retry cures")[2], re.M)
    return {words: (re.findall("`(.+?)`", named), how.strip("`")) for words, named, how in rows}


ROWS = table()


@shows("an error that no retry can cure fails the job at once, with a reason and without repeating its effects")
@pytest.mark.parametrize("words", ROWS)
async def test_each_row_of_the_table(app: App, words: str) -> None:
    names, how = ROWS[words]
    [case] = [case for begin, case in CASES.items() if words.startswith(begin)]
    found = await case[0](Effects(app))
    assert found.state is State.FAILED
    assert case[1] in (found.error or "")
    assert found.reason == ("error" if how == "retried" else how)
    if how == "retried":
        assert found.attempt == 2
    elif words not in ("other steps than those of the run that began the job",):
        assert found.attempt == 1
    if case[0] not in (resource, bad_step):  # of these two it is the exception of the user's function, or a group
        assert (found.error or "").startswith(tuple(f"treadle.errors.{name}: " for name in names))


def test_the_table_names_every_error_once_for_each_way_to_fail() -> None:
    classes = {
        name: kind
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type)
        and issubclass(kind, TreadleError)
        and kind not in (TreadleError, errors.StepFailed)  # it stands for any error of a step
    }
    named: dict[str, list[str]] = {}
    for names, how in ROWS.values():
        for name in names:
            named.setdefault(name, []).append(how)
    assert named.keys() == classes.keys()
    for name, kind in classes.items():
        assert (kind.fails_as or "retried") in named[name], name


@pytest.mark.parametrize("name", sorted({name for names, _ in ROWS.values() for name in names}))
async def test_each_error_fails_or_repeats_a_job_by_its_class(name: str) -> None:
    kind = getattr(errors, name)

    async def t() -> None:
        error = (
            kind.__new__(kind, "", "", None, None, [ValueError()]) if name == "WorkflowFailed" else kind.__new__(kind)
        )
        error.args = ("x",)
        raise error

    async with App("memory://") as app:
        found = await Effects(app).row_of(t)
    assert (found.attempt, found.reason) == ((2, "error") if kind.fails_as is None else (1, kind.fails_as))


# --- one effect, one run


@shows("a function whose result cannot be stored runs once, in every kind of task")
@pytest.mark.parametrize("size", [0, 300])
@pytest.mark.parametrize("kind", ["async", "thread", "process", "batch", "inline"])
async def test_a_function_whose_result_cannot_be_stored_runs_once(
    storage: Storage, clock: HandClock, kind: str, size: int, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    def effect() -> Any:
        with ran.open("a") as file:
            file.write("x")
        return "x" * size if size else Receipt()

    async def later() -> Any:
        return effect()

    async def several(items: list[int]) -> list[Any]:
        return [effect() for _ in items]

    async with App(storage=storage, clock=clock, sizes=Sizes(result=200)) as app:
        retry, args = Retry(attempts=5, base=0), tuple[Any, ...]()
        if kind == "batch":
            task: Any = app.batch(name="t", size=1, retry=retry)(several)
            args = (1,)
        elif kind == "process":
            task, args = app.task(name="t", kind="process", retry=retry)(process_tasks.leaves), (str(ran), size)
        else:
            task = app.task(name="t", retry=retry, inline=kind == "inline")(effect if kind == "thread" else later)
        job = await task.enqueue(*args)
        async with work(app):
            await job.ended(30)
        found = await app.jobs.get(job)
    assert ran.read_text() == "x"
    assert (found.state, found.attempt, found.reason) == (State.FAILED, 1, "result")
    assert ("the limit is 200" if size else "cannot be stored") in (found.error or "")


async def test_on_error_does_not_repeat_a_function_that_has_returned(app: App) -> None:
    ran: list[int] = []

    async def t() -> Any:
        ran.append(1)
        return Receipt()

    for number, verdict in enumerate((Retry.now(), Retry.after(0), Defer(1))):
        ran.clear()
        name, on_error = f"t{number}", lambda error, info, verdict=verdict: verdict
        found = await Effects(app).row_of(t, name=name, on_error=on_error)
        assert (ran, found.reason) == ([1], "result")


async def test_on_error_may_wait_for_other_code(app: App) -> None:
    async def t() -> None:
        async with asyncio.timeout(5):
            await current().sleep(60)

    found = await Effects(app).row_of(t, on_error=lambda error, info: Retry.now())
    assert (found.attempt, found.reason) == (2, "error")


@pytest.mark.parametrize("how", ["own", "gather"])
async def test_a_composition_that_cannot_be_stored_fails_at_once(app: App, how: str) -> None:
    it = Effects(app)

    @app.task(name="child")
    async def child(n: int) -> int:
        return n

    async def t() -> Any:
        it.charge()
        return flow(child.job(1)).value(Receipt()) if how == "own" else gather(child.job(1))

    found = await it.row_of(t)
    assert (it.count, found.attempt, found.reason) == (1, 1, "result")


# --- steps


@shows("a step whose result cannot be stored is not run again, and may be caught")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_failure_of_a_step_is_stored_in_its_place(app: App, kind: str) -> None:
    it = Effects(app)
    seen: list[str] = []

    async def undo(name: str) -> str:
        return f"undone {name}"

    def plain(name: str) -> str:
        return f"undone {name}"

    def again() -> None:
        if current().attempt < 3:
            raise ConnectionError("not yet")

    async def t() -> str:
        try:
            await current().step("charge", it.charge, Receipt())
        except BadResult as error:
            seen.append(str(error))
            undone = await current().step("undo", undo, "charge")
        again()
        return undone

    def in_thread() -> str:
        try:
            current().sync.step("charge", it.charge, Receipt())
        except BadResult as error:
            seen.append(str(error))
            undone = current().sync.step("undo", plain, "charge")
        again()
        return undone

    found = await it.row_of(t if kind == "async" else in_thread, retry=Retry(attempts=5, base=0))
    assert (found.state, found.attempt, it.count) == (State.SUCCEEDED, 3, 1)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    steps = (await app.jobs.history(found)).steps
    assert [step.name for step in steps] == ["charge", "undo"]
    assert "cannot be stored" in steps[0].value


async def test_a_failed_step_in_a_group_fails_the_job_at_once(app: App) -> None:
    it = Effects(app)

    async def t() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(current().step("charge", it.charge, Receipt()))

    found = await it.row_of(t)
    assert (it.count, found.attempt, found.reason) == (1, 1, "result")


async def test_a_failure_is_stored_although_no_further_step_would_fit(storage: Storage, clock: HandClock) -> None:
    async with App(storage=storage, clock=clock, sizes=Sizes(checkpoints=100)) as app:
        it = Effects(app)

        async def t() -> None:
            await current().step("charge", it.charge, "x" * 100)

        found = await it.row_of(t)
        await app.jobs.retry(found)
        await drain(app)
        assert it.count == 1


def test_an_error_names_itself_permanent() -> None:
    assert BadResult("t", "is wrong").permanent
    assert not BadArgument("t", None, "is wrong").permanent


async def test_a_stored_failure_of_an_unknown_class_fails_the_job_and_calls_nothing(app: App) -> None:
    it = Effects(app)

    async def t() -> None:
        await current().step("charge", it.charge)

    task: Any = app.task(name="t", retry=TWICE)(t)
    job = await task.enqueue()
    [claimed] = (await app.storage.claim(Claim(worker="w#1", limit=1))).records
    entry = '{"failure":{"type":"Declined","args":["no money"]}}'
    later = Outcome(id=claimed.id, version=claimed.version, state=State.READY, checkpoints=(("charge", entry),))
    await app.storage.settle([later])
    await drain(app)
    found = await app.jobs.get(job)
    assert (found.state, found.reason, it.count) == (State.FAILED, "aborted", 0)
    assert "step 'charge' raised Declined: no money" in (found.error or "")


async def test_a_task_of_treadles_own_is_retried_after_every_error(app: App, clock: HandClock) -> None:
    """Otherwise a defect would end a schedule for good."""
    calls: list[float] = []

    async def decide(record: Record, now: float) -> Outcome:
        calls.append(now)
        if len(calls) < 3:
            raise errors.UnknownTask("nobody")
        return judge.succeeded(record, "null")

    app._core.system_tasks["treadle.test"] = SystemTask("treadle.test", decide)
    await app.open()
    await app.storage.enqueue([NewJob(id="own", task="treadle.test", queue=SYSTEM_QUEUE)])
    for _ in range(3):
        await drain(app)
        clock.advance(3_600)
    assert (await app.jobs.get("own")).state is State.SUCCEEDED
    assert len(calls) == 3
