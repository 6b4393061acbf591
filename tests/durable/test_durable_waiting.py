"""Sleeps and signals: the slot is free meanwhile, and a later run continues after them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, Receipt, error_of
from tests.kit import Spy, Told, heartbeats, lose, work
from tests.waiting import Signal, turn
from treadle import (
    Abort,
    App,
    BadOption,
    BadStep,
    Defer,
    JobExpired,
    Middleware,
    Retry,
    Signalled,
    Stale,
    State,
    TooLarge,
    UnknownJob,
    current,
)
from treadle.core.model import Claim, NewJob, Outcome, Presence, Settled
from treadle.storage.contract import Storage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock, drain
from treadle.workflow.mailbox import new_message
from treadle_testkit.shows import shows


@pytest.mark.parametrize("released", [False, True])
async def test_a_sleep_that_began_while_the_clock_was_ahead_lasts_no_longer(
    app: App, clock: HandClock, released: bool
) -> None:
    """The storage corrects its times when the clock is set back; the time stored by the job is then days ahead."""

    @app.task
    async def nap() -> str:
        await current().sleep(60)
        return "awake"

    async def beat() -> None:
        await app.storage.heartbeat(Presence(worker="w"), (), 30.0)

    await app.open()
    await beat()
    clock.advance(86_400)
    await beat()
    job = await nap.enqueue()
    assert await drain(app) == 1
    clock.moment -= 86_400
    await beat()
    assert await drain(app) == 0
    clock.advance(60)
    if released:  # a worker that is stopping has claimed it
        [row] = (await app.storage.claim(Claim(worker="w#1", limit=1))).records
        await app.storage.settle([Outcome(id=row.id, version=row.version, state=State.READY)])
    assert await drain(app) == 1
    if released:  # then once more for the same time, at most
        clock.advance(60)
        assert await drain(app) == 1
    assert await job.result(0) == "awake"


class Nap:
    """A function that sleeps for an hour and then does its work once; `how` its first run ends instead."""

    def __init__(self, app: App, how: str) -> None:
        self.app, self.how, self.worked = app, how, 0
        self.tidying, self.tidied = asyncio.Event(), asyncio.Event()
        self.task: Any = app.task(name="nap", timeout=0.05 if how == "timeout" else None, retry=AGAIN)(self._nap)

    async def _nap(self) -> str:
        try:
            await current().sleep(3600)
        finally:
            if not self.tidying.is_set():
                self.tidying.set()
                await self._tidy()
        self.worked += 1
        return "worked"

    async def _tidy(self) -> None:
        match self.how:
            case "error":
                raise ConnectionError("closing the client failed")
            case "group":
                raise ExceptionGroup("both", [ConnectionError("closing the client failed")])
            case "defer":
                raise Defer(1)
            case "retry after":
                raise Retry.after(1)
            case "retry late":
                raise Retry.after(7200)
            case "abort":
                raise Abort("no")
            case "timeout" | "stop" | "lost" | "cancel":
                await self.tidied.wait()

    async def run_once(self, clock: HandClock, beats: Signal) -> Any:
        """Enqueue it, and let its first run end that way."""
        job = await self.task.enqueue()
        if self.how not in ("stop", "lost", "cancel"):
            await drain(self.app)
            clock.advance(1)
            if self.how == "abort":
                assert await self.app.jobs.retry(job) == 1
            return job
        async with work(self.app, grace=0, concurrency=1):  # while the run lasts, this worker claims nothing
            await self.tidying.wait()
            if self.how == "lost":
                await beats.until(lambda: beats.sent > 0, "the first heartbeat")
                clock.advance(60)
                [row] = (await self.app.storage.claim(Claim(worker="other#1", limit=1))).records
                await self.app.storage.settle([Outcome(id=row.id, version=row.version, state=State.READY, delay=1)])
            elif self.how == "cancel":
                await self.app.jobs.cancel(job)
                await self.app.jobs.retry(job)
        clock.advance(1)
        return job


ENDINGS = ("error", "group", "defer", "retry after", "abort", "timeout", "stop", "lost", "cancel")


@shows("a sleep lasts its time after any ending of the run that began it")
@pytest.mark.parametrize("how", ENDINGS)
async def test_a_sleep_lasts_its_time_after_any_ending_of_the_run_that_began_it(
    app: App, clock: HandClock, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nap = Nap(app, how)
    began = clock.moment
    job = await nap.run_once(clock, heartbeats(monkeypatch))
    for _ in range(3):
        await drain(app)
        assert not nap.worked
        row = await app.jobs.get(job)
        assert row.state is State.READY
        assert row.due_at is not None
        assert row.due_at >= began + 3600 - 0.001
        clock.moment = row.due_at - 1
        await app.jobs.run_now(job)  # a run that begins too early sleeps again
    clock.advance(1)
    await drain(app)
    assert await job.result(0) == "worked"
    assert nap.worked == 1


async def test_a_run_after_a_clean_up_that_failed_reads_whether_the_sleep_is_over_from_its_time(
    app: App, clock: HandClock
) -> None:
    nap = Nap(app, "retry late")
    job = await nap.task.enqueue()
    await drain(app)
    clock.advance(7200)
    await drain(app)
    assert await job.result(0) == "worked"
    assert nap.worked == 1


async def test_a_sleep_that_another_version_stored_lasts_its_time(app: App, clock: HandClock) -> None:
    """Until November 2026 an entry named the version of the run that began the sleep, also if that run failed."""
    nap = Nap(app, "error")
    job = await nap.task.enqueue()
    [row] = (await app.storage.claim(Claim(worker="old#1", limit=1))).records
    entry = f'{{"until":{clock.moment + 3600},"left":{row.version}}}'
    old = Outcome(id=row.id, version=row.version, state=State.READY, attempt=1, checkpoints=(("sleep:sleep", entry),))
    assert [each.status for each in await app.storage.settle([old])] == ["applied"]
    nap.tidying.set()
    await drain(app)
    assert not nap.worked
    clock.advance(3600)
    await drain(app)
    assert await job.result(0) == "worked"


async def test_a_sleep_that_is_over_stays_over_after_the_clock_was_set_back(app: App, clock: HandClock) -> None:
    """Also for a run after the one that it let continue."""
    rounds: list[int] = []

    @app.task(retry=AGAIN)
    async def nap() -> str:
        await current().sleep(60)
        rounds.append(current().attempt)
        if len(rounds) < 3:
            raise ValueError("not yet")
        return "awake"

    async def beat() -> None:
        await app.storage.heartbeat(Presence(worker="w"), (), 30.0)

    await app.open()
    await beat()
    clock.advance(86_400)
    await beat()
    job = await nap.enqueue()
    assert await drain(app) == 1
    clock.moment -= 86_400
    await beat()
    clock.advance(60)
    await drain(app)
    assert rounds == [1, 2, 3]
    assert await job.result(0) == "awake"


@shows("a sleep ends the run until it is over and counts no attempt")
async def test_a_sleep_frees_the_slot_and_the_job_continues_when_it_is_over(
    app: App, clock: HandClock, told: Told, ledger: Ledger
) -> None:
    @app.task
    async def t() -> str:
        first = await current().step("a", ledger.do, "a")
        await current().sleep(3600)
        await current().sleep(timedelta(hours=1))
        return first

    job = await t.enqueue()
    assert await drain(app) == 1
    row = await app.jobs.get(job)
    assert (row.state, row.attempt, row.due_at) == (State.READY, 0, clock.moment + 3600)
    clock.advance(3599)
    assert await drain(app) == 0
    clock.advance(1)
    assert await drain(app) == 1
    assert (await app.jobs.get(job)).due_at == clock.moment + 3600
    clock.advance(3600)
    assert await drain(app) == 1
    assert await job.result(0) == "a 1"
    assert [(event.name, event.delay) for event in told.events if event.name == "deferred"] == [
        ("deferred", 3600.0)
    ] * 2


async def test_a_sleep_until_a_past_time_ends_at_once(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        await current().sleep(0)
        await current().sleep(until=datetime.fromtimestamp(clock.moment - 5, UTC))
        await current().sleep(until=datetime.fromtimestamp(clock.moment + 60, UTC))

    moment = clock.moment
    job = await t.enqueue()
    assert await drain(app) == 1
    assert (await app.jobs.get(job)).due_at == pytest.approx(moment + 60)


async def test_a_run_that_is_woken_too_early_sleeps_again(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        await current().sleep(60)

    job = await t.enqueue()
    await drain(app)
    clock.advance(20)
    await app.jobs.run_now(job)
    assert await drain(app) == 1
    row = await app.jobs.get(job)
    assert (row.state, row.due_at) == (State.READY, pytest.approx(clock.moment + 40))


async def test_threads_sleep_too(app: App, clock: HandClock) -> None:
    @app.task
    def t() -> str:
        current().sync.sleep(60)
        return "slept"

    job = await t.enqueue()
    assert await drain(app) == 1
    clock.advance(60)
    assert await drain(app) == 1
    assert await job.result(0) == "slept"


async def test_a_sleep_beyond_the_deadline_has_expired_at_once(app: App) -> None:
    @app.task(expires=60)
    async def t() -> None:
        await current().sleep(61)

    job = await t.enqueue()
    await drain(app)
    with pytest.raises(JobExpired, match="sleep beyond its deadline"):
        await job.result(0)


@pytest.mark.parametrize("how", ["bare", "finally"])
async def test_a_task_that_catches_the_sleep_fails_with_an_error(
    app: App, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        if how == "finally":
            try:
                await current().sleep(60)
            finally:
                return "slept"  # noqa: B012
        for _ in range(2):
            with suppress(BaseException):
                await current().sleep(60)
        return "slept"

    job = await t.enqueue()
    await drain(app)
    assert "the function continued after sleep() or wait_for()" in await error_of(app, job)
    assert "continued after sleep" in caplog.text


async def test_an_error_that_replaces_the_exception_of_a_sleep_fails_the_attempt(app: App, clock: HandClock) -> None:
    """The next attempt sleeps for the rest of the time."""

    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            await current().sleep(60)
        except BaseException as error:
            if current().attempt == 1:
                raise ValueError("mine") from error
            raise
        return "slept"

    job = await t.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, row.attempt) == (State.READY, 1)
    assert row.error is not None
    assert row.error.startswith("ValueError: mine")
    assert "It was raised while sleep() or wait_for() suspended the function" in row.error
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "slept"


async def test_ordinary_except_and_middleware_do_not_catch_the_sleep(app: App, clock: HandClock) -> None:
    seen: list[str] = []

    class Layer(Middleware):
        async def run(self, context: Any, proceed: Any) -> Any:
            try:
                return await proceed()
            except Exception as error:
                seen.append(repr(error))
                raise

    app.middleware(Layer)

    @app.task
    async def t() -> str:
        try:
            async with asyncio.TaskGroup():
                await current().sleep(60)
        except Exception as error:
            seen.append(repr(error))
        return "slept"

    job = await t.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert (await job.result(0), seen) == ("slept", [])


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_branch_cannot_restart(app: App, leaves: bool) -> None:
    """The run fails, even if the function catches the error, or sleeps itself."""

    @app.task(retry=Retry(attempts=1))
    async def t() -> str:
        found = await asyncio.gather(current().restart(), return_exceptions=True)
        assert all(isinstance(each, BadStep) for each in found)
        if leaves:
            await current().sleep(60)
        return "has not restarted"

    job = await t.enqueue()
    await drain(app)
    assert "await it in the function itself" in await error_of(app, job)


@shows("a run that takes the first of two waits by asyncio fails and does not succeed without waiting")
async def test_two_waits_that_race_do_not_succeed_without_having_waited(app: App) -> None:
    """asyncio.wait does not raise the exceptions of its tasks."""

    @app.task(retry=Retry(attempts=1))
    async def t() -> str:
        here = current()
        waits = [asyncio.ensure_future(here.wait_for(name)) for name in ("approved", "rejected")]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        # so that none of the exceptions is reported as never retrieved
        await asyncio.gather(*waits, return_exceptions=True)
        return f"{len(done)} done"

    job = await t.enqueue()
    await drain(app)
    assert "use current().first" in await error_of(app, job)


@shows("a run that waits for a signal resumes with its value and repeats no step")
async def test_a_signal_after_the_wait(app: App, ledger: Ledger) -> None:
    @app.task
    async def t() -> Any:
        await current().step("ask", ledger.do, "ask")
        answer = await current().wait_for("approved")
        return [answer, await current().step("done", ledger.do, "done")]

    job = await t.enqueue()
    assert await drain(app) == 1
    assert (await app.jobs.get(job)).state is State.WAITING
    assert await app.jobs.explain(job) == (
        f"It waits for the signal 'approved': `treadle jobs signal {job.id} approved` sends it."
    )
    await app.jobs.signal(job, "approved", {"by": "Ada"})
    assert await drain(app) == 1
    assert await job.result(0) == [{"by": "Ada"}, "done 1"]
    assert ledger.function_done["ask"] == 1


@shows("a signal may be sent before the job waits for it, and before its first run")
async def test_a_signal_before_the_wait_and_before_the_first_run(app: App) -> None:
    @app.task
    async def t() -> list[Any]:
        return [await current().wait_for("a"), await current().wait_for("b")]

    job = await t.options(delay=0).enqueue()
    await app.jobs.signal(job, "b", 2)
    await app.jobs.signal(job.id, "a", 1)
    assert await drain(app) == 1
    assert await job.result(0) == [1, 2]


@shows("a second signal raises `Signalled`, and the first value stays")
async def test_a_second_signal_raises(app: App) -> None:
    @app.task
    async def t() -> Any:
        return await current().wait_for("a")

    job = await t.enqueue()
    await app.jobs.signal(job, "a", 1)
    for value in (1, 2):
        with pytest.raises(Signalled, match="the first value stays"):
            await app.jobs.signal(job, "a", value)
    await drain(app)
    assert await job.result(0) == 1
    with pytest.raises(Stale, match="succeeded; it does not wait for 'a' any more"):
        await app.jobs.signal(job, "a")
    with pytest.raises(UnknownJob):
        await app.jobs.signal("nobody", "a")
    other = await t.enqueue()
    with pytest.raises(BadStep):
        await app.jobs.signal(other, "a#2")
    with pytest.raises(BadOption, match="signal"):
        await app.jobs.signal(other, "a", object())
    with pytest.raises(BadOption, match="no annotation can name Receipt here: pass plain data"):
        await app.jobs.signal(other, "a", Receipt(1, datetime.now(UTC)))
    with pytest.raises(TooLarge):
        await app.jobs.signal(other, "a", "x" * 1_100_000)


@shows("a wait for a signal ends at its timeout, and may be repeated")
async def test_a_wait_that_timed_out_may_be_repeated(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task
    async def t() -> Any:
        while True:
            try:
                return await current().wait_for("approved", timeout=3600)
            except TimeoutError:
                await current().step("remind", ledger.do, "remind")

    job = await t.enqueue()
    await drain(app)
    for _ in range(12):
        clock.advance(3601)
        assert await drain(app) == 1
    assert ledger.function_done["remind"] == 12
    await app.jobs.signal(job, "approved", "yes")
    await drain(app)
    assert await job.result(0) == "yes"
    assert (await app.jobs.list(workflow=job.id, state="waiting")).records == ()


async def test_a_wait_of_no_time_only_looks(app: App) -> None:
    @app.task
    async def t() -> list[Any]:
        found: list[Any] = []
        for name in ("a", "b"):
            try:
                found.append(await current().wait_for(name, timeout=0))
            except TimeoutError:
                found.append(None)
        return found

    job = await t.enqueue()
    await app.jobs.signal(job, "b", 2)
    assert await drain(app) == 1
    assert await job.result(0) == [None, 2]


async def test_a_wait_that_timed_out_times_out_in_later_runs_too(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def t() -> str:
        try:
            await current().wait_for("approved", timeout=60)
        except TimeoutError:
            ledger.plain("end")
            return "given up"
        return "approved"

    ledger.fail["end"] = 1
    job = await t.enqueue()
    await drain(app)
    clock.advance(61)

    @app.on("retrying")
    async def late(_: Any) -> None:
        await app.jobs.signal(job, "approved", True)

    await drain(app)
    assert await job.result(0) == "given up"


async def test_a_signal_is_received_once(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t() -> None:
        await current().wait_for("a")
        await current().wait_for("a")

    job = await t.enqueue()
    await app.jobs.signal(job, "a")
    await drain(app)
    assert "already received the signal" in await error_of(app, job)


async def test_a_signal_read_as_a_type(app: App) -> None:
    @app.task
    async def t() -> int:
        found = await current().wait_for("paid", returns=Receipt)
        return found.number

    job = await t.enqueue()
    await app.jobs.signal(job, "paid", {"number": 7, "at": "2026-01-02T00:00:00Z"})
    await drain(app)
    assert await job.result(0) == 7


async def test_threads_wait_too(app: App) -> None:
    @app.task
    def t() -> Any:
        return current().sync.wait_for("a", timeout=60)

    job = await t.enqueue()
    await drain(app)
    await app.jobs.signal(job, "a", 3)
    await drain(app)
    assert await job.result(0) == 3


async def test_a_job_that_is_cancelled_while_it_waits_leaves_nothing_behind(app: App) -> None:
    @app.task
    async def t() -> Any:
        return await current().wait_for("a")

    jobs = await app.enqueue(t.job(), t.job())
    await drain(app)
    assert await app.jobs.cancel(jobs[0]) == 1
    assert await app.jobs.cancel(jobs[1], tree=False) == 1
    assert await drain(app) == 2  # their cleanups
    assert (await app.jobs.list(state=["waiting", "ready"], count=True)).total == 0
    await app.jobs.retry(jobs[0])
    await drain(app)
    await app.jobs.signal(jobs[0], "a", "after all")
    await drain(app)
    assert await jobs[0].result(0) == "after all"


async def test_a_deadline_ends_the_wait_and_its_row(app: App, clock: HandClock) -> None:
    @app.task(expires=60)
    async def t() -> Any:
        return await current().wait_for("a")

    job = await t.enqueue()
    await drain(app)
    clock.advance(61)
    assert await drain(app) == 0
    with pytest.raises(JobExpired):
        await job.result(0)
    assert (await app.jobs.list(state=["waiting", "ready"], count=True)).total == 0


async def test_the_rows_of_signals_stay_as_long_as_the_workflow(app: App, clock: HandClock, spy: Spy) -> None:
    @app.task
    async def t() -> Any:
        await current().sleep(timedelta(days=90))
        return await current().wait_for("a")

    job = await t.enqueue()
    await app.jobs.signal(job, "a", 1)
    await drain(app)
    clock.advance(90 * 86_400)
    await spy.inner.prune(100)
    await drain(app)
    assert await job.result(0) == 1
    clock.advance(2 * 86_400)
    assert await spy.inner.prune(100) == 2


async def test_a_signal_during_the_start_of_a_wait_is_received(app: App) -> None:
    @app.task
    async def t() -> Any:
        return await current().wait_for("go")

    async with work(app, concurrency=8):
        jobs = await app.enqueue([t.job() for _ in range(40)])
        for number, job in enumerate(jobs):
            await turn(number % 7)
            await app.jobs.signal(job, "go", number)
        assert [await job.result(30) for job in jobs] == list(range(40))


class Overtaken(StorageProxy):
    """Before the first settle, a sender stores the row of a message, and dies."""

    def __init__(self, inner: Storage, row: NewJob) -> None:
        super().__init__(inner)
        self.row: NewJob | None = row

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if self.row is not None:
            row, self.row = self.row, None
            await self.storage.enqueue([row])
        return await self.storage.settle(outcomes)


async def test_a_signal_whose_sender_dies_after_storing_it_arrives(app: App, clock: HandClock, spy: Spy) -> None:
    """The job has begun to wait for that very row, so it continues when the row ends by itself."""

    @app.task
    async def t() -> Any:
        return await current().wait_for("a", timeout=3600)

    job = await t.enqueue()
    row = await app.jobs.get(job)
    message = new_message(job.id, "a", '"given"', None)
    spy.inner = Overtaken(spy.inner, message.row(row.job, 1))
    await drain(app)
    assert (await app.jobs.get(job)).state is State.WAITING
    with pytest.raises(Signalled):
        await app.jobs.signal(job, "a", "later")
    clock.advance(6)
    await drain(app)
    assert await job.result(0) == "given"


async def test_a_wait_without_end_outlasts_its_rows(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> Any:
        return await current().wait_for("a")

    job = await t.enqueue()
    await drain(app)
    for _ in range(20):
        clock.advance(31 * 86_400)
        assert await drain(app) == 1
        assert (await app.jobs.get(job)).state is State.WAITING
    await app.jobs.signal(job, "a", "at last")
    await drain(app)
    assert await job.result(0) == "at last"


async def test_rows_of_signals_are_no_jobs_of_the_workflow(app: App) -> None:
    @app.task
    async def t() -> list[Any]:
        return [await current().wait_for("a"), await current().wait_for("b")]

    job = await t.enqueue()
    await app.jobs.signal(job, "a", 1)
    await drain(app)
    progress = await job.workflow.progress()
    assert (progress.total, progress.done) == (1, 0)


async def test_workers_lost_before_a_sleep_count_no_more(app: App, clock: HandClock, spy: Spy) -> None:
    @app.task(max_lost=3)
    async def t() -> None:
        for _ in range(4):
            await current().sleep(60)

    job = await t.enqueue()
    for _ in range(4):
        await lose(spy.inner, clock, job.id, times=2)
        assert await drain(app) == 1
        clock.advance(60)
    assert (await app.jobs.get(job)).lost == 8
    await lose(spy.inner, clock, job.id)
    await lose(spy.inner, clock, job.id, times=3, alone=True)
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, row.reason) == (State.FAILED, "lost")
    assert "3 workers were lost" in (row.error or "")
