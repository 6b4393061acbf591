"""`Middleware.judged`: one call for each run of a job, with what Treadle decided and the exception itself."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.execution.run_endings import CASES, RETRY, SIZES, Judge
from tests.kit import lose, work
from tests.waiting import Signal
from tests.worker import process_tasks
from treadle import (
    Abort,
    App,
    BadTask,
    Flow,
    JobSpec,
    Middleware,
    Retry,
    RunOutcome,
    StorageError,
    current,
    flow,
)
from treadle.core.model import Claim, Claimed, Outcome, Settled
from treadle.execution.context import Context
from treadle.execution.middleware import Run
from treadle.storage.memory import MemoryStorage
from treadle.storage.proxy import StorageProxy
from treadle.storage.sqlite.run_transaction import RunTransaction
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


@pytest.fixture
async def here() -> AsyncIterator[App]:
    """An app whose storage does not matter."""
    app = App("memory://", retry=RETRY, sizes=SIZES)
    async with app:
        yield app


@pytest.mark.parametrize("name", CASES)
async def test_each_run_is_judged_once(here: App, name: str) -> None:
    layer = Judge()
    here.middleware(layer)
    make, calls = CASES[name]
    spec = make(here)
    async with work(here):
        [job] = await here.enqueue([spec])
        row = await job.ended(30)
    assert layer.of(job.id) == calls
    outcomes = [outcome for context, outcome, _ in layer.calls if context.id == job.id]
    assert [outcome.final for outcome in outcomes] == [False] * (len(outcomes) - 1) + [True]
    assert (outcomes[-1].name == "succeeded") == (row.state == "succeeded")
    assert outcomes[-1].reason == row.reason


@shows("`judged` gets the exception object, with the traceback of the function")
async def test_the_exception_is_the_one_that_was_raised(here: App) -> None:
    """Its traceback shows the function; that of a timeout and of a bad result says what Treadle found."""
    layer = Judge()
    here.middleware(layer)
    raised = ValueError("the one")

    @here.task(name="t", retry=Retry(attempts=1))
    async def t() -> None:
        raise raised

    async with work(here):
        await (await t.enqueue()).ended(30)
    [(context, outcome, error)] = layer.calls
    assert error is raised
    assert traceback.extract_tb(error.__traceback__)[-1].name == "t"
    assert (context.task, context.attempt, outcome.seconds >= 0) == ("t", 1, True)


async def test_a_process_reports_in_its_parent() -> None:
    """The exception is the RemoteFailure that a `run` middleware gets, too."""
    layer, app = Judge(), App("memory://", retry=Retry(attempts=1))
    app.middleware(layer)
    fails = app.task(kind="process", name="fails")(process_tasks.boom)
    dies = app.task(kind="process", name="dies")(process_tasks.dies)
    works = app.task(kind="process", name="works")(process_tasks.whoami)
    async with app, work(app):
        jobs = [await fails.enqueue(), await dies.enqueue(3), await works.enqueue()]
        for job in jobs:
            await job.ended(60)
    assert [layer.of(job.id) for job in jobs] == [
        ["failed error RemoteFailure"],
        ["failed error ProcessDied"],
        ["succeeded"],
    ]


@pytest.mark.parametrize("way", ["inline", "drain", "testing"])
async def test_judged_is_called_for_each_kind_of_run(here: App, way: str) -> None:
    layer = Judge()
    here.middleware(layer)

    @here.task(name="t")
    async def t() -> None:
        raise Abort("no")

    if way == "inline":
        await (await t.options(inline=True).enqueue()).ended(30)
    elif way == "drain":
        await t.enqueue()
        await drain(here)
    else:
        async with here.testing() as testing:
            await t.enqueue()
            await testing.drain()
    assert [outcome.reason for _, outcome, _ in layer.calls] == ["aborted"]


# --- runs that end from outside


class Held:
    """A task that waits until it is cancelled."""

    def __init__(self, app: App) -> None:
        self.began = Signal()

        @app.task(name="held")
        async def held() -> None:
            self.began.send()
            await asyncio.Event().wait()

        self.task = held


async def test_a_run_that_is_cancelled_by_hand(app: App) -> None:
    layer, held = Judge(), Held(app)
    app.middleware(layer)
    async with work(app, lease=3600):
        job = await held.task.enqueue()
        await held.began.until(lambda: held.began.sent, "its start")
        await app.jobs.cancel(job)
        outcome = await layer.until("cancelled")
    assert (layer.of(job.id), outcome.final) == (["cancelled"], True)


async def test_a_run_whose_job_another_worker_took(app: App, clock: HandClock) -> None:
    layer, held = Judge(), Held(app)
    app.middleware(layer)
    async with work(app, name="stalled", lease=0.3):
        job = await held.task.enqueue()
        await held.began.until(lambda: held.began.sent, "its start")
        other = Claim(worker="other#1", queues=(("default", 1),), limit=1, lease=3600)
        while True:
            clock.advance(1)
            if (await app.storage.claim(other)).records:
                break
        outcome = await layer.until("lost")
    assert (layer.of(job.id), outcome.final) == (["lost"], False)


async def test_a_run_that_its_stopping_worker_releases(here: App) -> None:
    layer, held = Judge(), Held(here)
    here.middleware(layer)
    worker = work(here)
    await worker.start()
    job = await held.task.enqueue()
    await held.began.until(lambda: held.began.sent, "its start")
    await worker.stop(grace=0)
    assert layer.of(job.id) == ["released"]


@shows("a live worker reports the run of a dead one to `judged`, as `reaped`")
async def test_a_run_of_a_dead_worker_is_reported_by_the_next_one(app: App, clock: HandClock) -> None:
    """If too many were lost while they ran only this job, its call says that the job has failed."""
    layer = Judge()
    app.middleware(layer)

    @app.task(name="t", max_lost=2)
    async def t() -> None: ...

    once, twice = (await t.enqueue()).id, ""
    await lose(app.storage, clock, once)
    async with work(app):
        await layer.until("succeeded")
    twice = (await t.enqueue()).id
    await lose(app.storage, clock, twice)
    await lose(app.storage, clock, twice, times=2, alone=True)
    async with work(app):
        await layer.until("failed")
    assert layer.of(once) == ["reaped", "succeeded"]
    assert layer.of(twice) == ["failed lost JobFailed"]


@pytest.mark.parametrize("how", ["stored", "raises", "commit"])
async def test_a_run_with_a_transaction_is_judged_after_its_commit(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: RunTransaction) -> None:
        raise OSError("disk full")

    if how == "commit":
        monkeypatch.setattr(RunTransaction, "commit", broken)
    layer, app = Judge(), App(f"sqlite:///{tmp_path / 'jobs.db'}", retry=Retry(attempts=1))
    app.middleware(layer)

    @app.task(name="t")
    async def t() -> None:
        async with current().transaction():
            if how == "raises":
                raise ValueError("no")

    async with app, work(app):
        job = await t.enqueue()
        await job.ended(30)
        await layer.called.until(lambda: layer.calls, "the call")
    expected = {"stored": "succeeded", "raises": "failed error ValueError", "commit": "failed error OSError"}
    assert layer.of(job.id) == [expected[how]]


class Picky(StorageProxy):
    """Raises the error of a server for a value that it cannot store."""

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if any(job.task == "poison" for outcome in outcomes for job in outcome.followups):
            raise StorageError("value out of range: poison")
        return await super().settle(outcomes)

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        return (await self.settle(outcomes) if outcomes else []), await self.claim(ask)


async def test_an_outcome_that_the_storage_refuses_is_followed_by_its_failure() -> None:
    layer, app = Judge(), App(storage=Picky(MemoryStorage()), retry=Retry(attempts=1))
    app.middleware(layer)

    @app.task(name="poison")
    async def poison() -> None: ...

    @app.task(name="t")
    async def t() -> JobSpec[None]:
        return poison.job()

    async with app, work(app):
        job = await t.enqueue()
        await job.ended(30)
    assert layer.of(job.id) == ["waiting", "failed result StorageError"]


async def test_treadles_own_tasks_are_not_reported(app: App, clock: HandClock) -> None:
    layer = Judge()
    app.middleware(layer)

    @app.every(60, name="minutely")
    @app.task(name="tick")
    async def tick() -> Flow[None]:
        return flow(part.job(), part.job())

    @app.task(name="part")
    async def part() -> None: ...

    await drain(app)
    clock.advance(61)
    await drain(app)
    assert {context.task for context, _, _ in layer.calls} == {"tick", "part"}


# --- what the hook sees, and what it cannot do

tenant: ContextVar[str] = ContextVar("tenant", default="none")


async def test_judged_runs_in_the_context_of_its_job(here: App) -> None:
    seen: list[tuple[str, str]] = []

    class Tenant(Middleware):
        async def run(self, context: Context, proceed: Run) -> Any:
            tenant.set(context.headers["tenant"])
            return await proceed()

        def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
            seen.append((tenant.get(), current().id))

    here.middleware(Tenant)

    @here.task(name="t")
    async def t() -> None: ...

    jobs = [await t.options(headers={"tenant": name}).enqueue() for name in "abc"]
    async with work(here, concurrency=3):
        for job in jobs:
            await job.ended(30)
    assert sorted(seen) == sorted(zip("abc", [job.id for job in jobs], strict=True))


@pytest.mark.parametrize("wrong", [ValueError("mine"), SystemExit(1), asyncio.CancelledError()], ids=repr)
@shows("a `judged` that raises is logged and changes nothing")
async def test_a_hook_that_raises_changes_nothing(
    here: App, wrong: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    first, last, heard = Judge(), Judge(), list[str]()

    class Broken(Middleware):
        def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
            raise wrong

    for layer in (first, Broken(), last):
        here.middleware(layer)
    here.on("*")(lambda event: heard.append(event.name) if event.task == "t" else None)

    @here.task(name="t")
    async def t(fails: bool) -> str:
        if fails:
            raise Abort("no")
        return "done"

    async with work(here):
        good, bad = await t.enqueue(fails=False), await t.enqueue(fails=True)
        assert await good.result(30) == "done"
        assert (await bad.ended(30)).reason == "aborted"
    assert first.of(good.id) == last.of(good.id) == ["succeeded"]
    assert first.of(bad.id) == last.of(bad.id) == ["failed aborted Abort"]
    assert sorted(heard) == [*["enqueued"] * 2, "failed", *["started"] * 2, "succeeded", *["workflow.ended"] * 2]
    logged = [each for each in caplog.records if "Broken.judged failed" in each.getMessage()]
    assert [(each.levelno, each.exc_info is not None) for each in logged] == [(logging.ERROR, True)] * 2


def test_a_coroutine_function_is_refused(here: App) -> None:
    class Late(Middleware):
        async def judged(self, *_: Any) -> None:  # type: ignore[override]
            ...

    with pytest.raises(BadTask, match=r"Late\.judged must be a plain function"):
        here.middleware(Late)
