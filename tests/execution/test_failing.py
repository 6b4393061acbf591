"""Every way in which a run can fail, and what the job, its next attempt and its row contain afterwards."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from tests.kit import Told, work
from treadle import Abort, App, Defer, JobExpired, JobFailed, Retry, State, current
from treadle.core.clock import moment
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.shows import shows


@shows("`raise Retry.after(s)` is a counted retry after s seconds, and `Retry.only(...)` retries nothing else")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_task_chooses_the_wait_before_its_next_attempt(
    app: App, clock: HandClock, told: Told, kind: str
) -> None:
    def body() -> int:
        if current().attempt == 1:
            raise Retry.after(77) from ConnectionError("503")
        raise OSError("no")

    async def later() -> int:
        return body()

    task: Any = app.task(name="t", on_error=Retry.only(ConnectionError))(later if kind == "async" else body)
    async with work(app):
        job = await task.enqueue()
        assert (await told.until("retrying", 1)).delay == 77
        row = await app.jobs.get(job)
        assert (row.attempt, row.due_at, (row.error or "").splitlines()[0]) == (1, clock() + 77, "ConnectionError: 503")
        clock.advance(77)
        with pytest.raises(JobFailed) as failed:
            await job.result(timeout=30)
    assert (failed.value.reason, (await app.jobs.get(job)).attempt) == ("aborted", 2)


FAST = Retry(base=10.0, factor=2.0, max=100.0)


@shows(
    "a failed attempt is retried after the delays of its `Retry`",
    "an attempt sees its number and the error of the attempt before it, and success clears the error",
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_failure_is_retried_with_the_delays_of_the_formula(
    app: App, clock: HandClock, told: Told, kind: str
) -> None:
    seen: list[tuple[int, str | None]] = []

    def body() -> int:
        here = current()
        seen.append((here.attempt, here.error and here.error.splitlines()[-1]))
        if here.attempt < 4:
            raise ValueError(f"no. {here.attempt}")
        return here.attempt

    async def later() -> int:
        return body()

    task: Any = app.task(name="t", retry=FAST)(later if kind == "async" else body)
    async with work(app):
        job = await task.enqueue()
        for n in (1, 2, 3):
            event = await told.until("retrying", n)
            assert event.delay == (10, 20, 40)[n - 1]
            row = await app.jobs.get(job)
            assert (row.state, row.attempt, row.due_at) == (State.READY, n, clock() + (event.delay or 0))
            clock.advance(event.delay or 0)
        assert await job.result(timeout=30) == 4
    assert seen == [(1, None), (2, "ValueError: no. 1"), (3, "ValueError: no. 2"), (4, "ValueError: no. 3")]
    assert (await app.jobs.get(job)).error is None


@shows("the stored error is a traceback without lines of Treadle")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_error_is_a_traceback_without_our_own_lines(app: App, kind: str) -> None:
    def deep() -> None:
        raise ValueError("boom")

    async def later() -> None:
        deep()

    task: Any = app.task(name="t", retry=Retry(attempts=1))(later if kind == "async" else deep)
    async with work(app):
        job = await task.enqueue()
        with pytest.raises(JobFailed, match="ValueError: boom") as caught:
            await job.result(timeout=30)
    text = caught.value.error or ""
    assert text.startswith("ValueError: boom\nTraceback")
    assert 'raise ValueError("boom")' in text
    for ours in ("runner.py", "threads.py", "pump.py", "concurrent", "contextvars"):
        assert ours not in text


@shows("`Defer` runs the job again later and counts no attempt")
async def test_defer_is_not_counted(app: App, clock: HandClock, told: Told) -> None:
    seen: list[int] = []

    @app.task(retry=Retry(attempts=1))
    async def patient() -> str:
        seen.append(current().attempt)
        if len(seen) == 1:
            raise Defer(300)
        if len(seen) == 2:
            raise Defer(until=moment(clock() + 50))
        return "done"

    async with work(app):
        job = await patient.enqueue()
        assert (await told.until("deferred")).delay == 300
        clock.advance(300)
        assert (await told.until("deferred", 2)).delay == 50
        clock.advance(50)
        assert await job.result(timeout=30) == "done"
    assert seen == [1, 1, 1]


async def test_abort_fails_at_once(app: App, told: Told) -> None:
    @app.task
    async def picky() -> None:
        raise Abort("bad input")

    async with work(app):
        with pytest.raises(JobFailed, match="bad input") as caught:
            await (await picky.enqueue()).result(timeout=30)
    assert (caught.value.reason, caught.value.error) == ("aborted", "bad input")
    assert told.names("retrying", "failed") == ["failed"]


@shows("`on_error=` decides whether an attempt is retried, deferred or aborted")
@pytest.mark.parametrize(
    ("verdict", "event"),
    [(Retry.now(), "retrying"), (Defer(30), "deferred"), (Abort("no"), "failed"), (None, "retrying")],
)
@pytest.mark.parametrize("where", ["task", "app"])
async def test_on_error_decides_whether_an_attempt_is_retried(
    storage: Storage, clock: HandClock, verdict: Any, event: str, where: str
) -> None:
    asked: list[Any] = []

    def on_error(error: BaseException, info: Any) -> Any:
        asked.append((str(error), info.attempt, info.attempts, info.task))
        return verdict

    per_app = on_error if where == "app" else None
    async with App(storage=storage, clock=clock, random=lambda: 0.0, on_error=per_app) as app:
        told = Told(app)

        @app.task(name="t", retry=Retry(attempts=2), on_error=on_error if where == "task" else None)
        async def t() -> None:
            raise ValueError("x")

        async with work(app):
            await t.enqueue()
            first = await told.until(event)
    assert asked[0] == ("x", 1, 2, "t")
    assert first.delay == {"retrying": 1.0 if verdict is None else 0.0, "deferred": 30.0, "failed": None}[event]


@shows("an `on_error=` that raises is logged and ignored")
@pytest.mark.parametrize("answer", ["raises", "exits", "interrupts", "cancels", "groups", "nonsense", "coroutine"])
async def test_an_on_error_that_is_broken_is_reported_and_ignored(
    app: App, told: Told, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    def on_error(error: BaseException, info: Any) -> Any:
        broken = {
            "raises": RuntimeError("broken"),
            "exits": SystemExit(3),
            "interrupts": KeyboardInterrupt(),
            "cancels": asyncio.CancelledError(),
            "groups": BaseExceptionGroup("two", [SystemExit(3)]),
        }
        if answer in broken:
            raise broken[answer]
        return asyncio.sleep(0) if answer == "coroutine" else "abort"

    @app.task(on_error=on_error)
    async def t() -> None:
        raise ValueError("x")

    async with work(app):
        await t.enqueue()
        await told.until("retrying")
    assert "on_error failed" in caplog.text


@shows("`on_error=` is not called for an `Abort`")
async def test_on_error_is_not_called_for_an_abort(app: App, told: Told) -> None:
    asked: list[BaseException] = []

    @app.task(on_error=lambda error, info: asked.append(error))
    async def t() -> None:
        raise Abort

    async with work(app):
        await t.enqueue()
        await told.until("failed")
    assert asked == []


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class LeavingAbort(Abort):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        asyncio.CancelledError(),
        BaseExceptionGroup("g", [SystemExit(1)]),
        Wordless(),
        Leaving(),
        LeavingAbort(),
        StopIteration(),
        StopAsyncIteration(),
        GeneratorExit(),
        TimeoutError(),
        MemoryError(),
        RecursionError("deep"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_continues_after_any_exception_of_a_task(app: App, kind: str, error: BaseException) -> None:
    def body() -> None:
        raise error

    async def later() -> None:
        raise error

    task: Any = app.task(name="t", retry=Retry(attempts=1))(later if kind == "async" else body)

    @app.task
    async def fine() -> int:
        return 1

    async with work(app, concurrency=1):
        with pytest.raises(JobFailed) as caught:
            await (await task.enqueue()).result(timeout=30)
        assert caught.value.reason == ("aborted" if isinstance(error, Abort) else "error")
        assert await (await fine.enqueue()).result(timeout=30) == 1


async def test_a_keyboard_interrupt_in_a_thread_is_a_failure_too(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    def t() -> None:
        raise KeyboardInterrupt

    async with work(app):
        with pytest.raises(JobFailed, match="KeyboardInterrupt"):
            await (await t.enqueue()).result(timeout=30)


async def test_a_timeout_cancels_the_function_and_counts(app: App, clock: HandClock, told: Told) -> None:
    attempts: list[int] = []

    @app.task(timeout=0.02, retry=Retry(attempts=2))
    async def slow() -> None:
        attempts.append(current().attempt)
        await asyncio.Event().wait()

    async with work(app):
        job = await slow.enqueue()
        await told.until("retrying")
        clock.advance(10)
        with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.02 s"):
            await job.result(timeout=30)
    assert attempts == [1, 2]


@shows("a timeout sets `cancelled` for a task in a thread, and the run ends when its function returns")
async def test_a_timeout_sets_cancelled_in_a_thread_and_waits_for_its_end(app: App, told: Told) -> None:
    @app.task(timeout=0.02, retry=Retry(attempts=1), queue="a")
    def slow() -> str:
        assert current().wait(30)
        assert current().cancelled
        return "after all"

    async with work(app):
        with pytest.raises(JobFailed, match="timeout"):
            await (await slow.enqueue()).result(timeout=30)
    assert told.names("failed", "succeeded") == ["failed"]


async def test_a_timeout_of_one_job_is_its_own(app: App, told: Told) -> None:
    go = asyncio.Event()

    @app.task(timeout=0.01, retry=Retry(attempts=1))
    async def t() -> str:
        await go.wait()
        return "slow but fine"

    async with work(app):
        slow = await t.options(timeout=None).enqueue()
        await told.until("started")
        await t.enqueue()  # later, and its time is over before that of the other one
        await told.until("failed")
        go.set()
        assert await slow.result(timeout=30) == "slow but fine"


@shows("a job that is still delayed at its deadline expires")
async def test_a_delayed_job_expires_at_its_deadline(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None: ...

    job = await t.options(delay=60, expires=timedelta(seconds=30)).enqueue()
    clock.advance(31)
    async with work(app):
        with pytest.raises(JobExpired):
            await job.result(timeout=30)


@shows("a job that still runs at its deadline is cancelled and expires")
async def test_a_running_job_expires_at_its_deadline(app: App, told: Told) -> None:
    cancelled = asyncio.Event()

    @app.task
    async def t() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with work(app):
        job = await t.options(expires=0.02).enqueue()
        with pytest.raises(JobExpired, match="while it ran"):
            await job.result(timeout=30)
    assert cancelled.is_set()
    assert told.names("expired", "failed", "retrying") == ["expired"]


@shows("a job whose retry would start after its deadline expires at once")
async def test_a_retry_that_would_start_after_the_deadline_expires_at_once(app: App) -> None:
    @app.task(retry=Retry(base=60))
    async def t() -> None:
        raise ValueError("first")

    async with work(app):
        job = await t.options(expires=30).enqueue()
        with pytest.raises(JobExpired, match="first"):
            await job.result(timeout=30)


@shows("a worker whose clock is a day ahead expires no job")
async def test_a_client_whose_clock_is_wrong_expires_nothing(storage: Storage, clock: HandClock) -> None:
    async with App(storage=storage, clock=lambda: clock() + 86_400, random=lambda: 0.0) as app:
        told = Told(app)

        @app.task(retry=Retry(base=10))
        async def t() -> None:
            raise ValueError

        async with work(app):
            await t.options(expires=3600).enqueue()
            assert (await told.until("retrying")).delay == 10


@shows("an argument that the task cannot decode fails the attempt, and the error names the parameter")
async def test_an_argument_that_cannot_be_decoded_fails_the_attempt_by_name(app: App) -> None:
    @app.task(name="t", retry=Retry(attempts=1))
    async def t(n: int) -> None: ...

    async with work(app):
        with pytest.raises(JobFailed, match="'n'"):
            await (await app.stub("t").enqueue("five")).result(timeout=30)


@shows(
    "`JobFilter` adds the job, its task, queue, workflow, attempt and worker to log records",
    area="Results, events and logs",
)
async def test_log_records_name_their_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    from treadle import JobFilter

    log = logging.getLogger("of.the.user")

    @app.task(name="t")
    def t() -> None:
        log.warning("inside")

    caplog.handler.addFilter(job_filter := JobFilter())
    try:
        async with work(app, name="w1"):
            job = await t.enqueue()
            await job.result(timeout=30)
            log.warning("outside")
    finally:
        caplog.handler.removeFilter(job_filter)
    [inside, outside] = [record for record in caplog.records if record.name == "of.the.user"]
    here = {"job": job.id, "task": "t", "attempt": 1, "worker": "w1", "queue": "default", "workflow": job.id}
    assert vars(inside).items() >= {**here, "trace_id": "-", "span_id": "-"}.items()
    assert vars(outside).items() >= {**dict.fromkeys(here, "-"), "trace_id": "-"}.items()
