"""Workers: which jobs they claim, how they stop, and what they do when a job is lost or the storage is unavailable."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Spy, Told, heartbeats, lose, nothing_left, work
from tests.waiting import Signal
from treadle import (
    App,
    BadOption,
    Event,
    Job,
    JobCancelled,
    JobFailed,
    Limit,
    Locked,
    Middleware,
    Record,
    Retry,
    State,
    StorageUnavailable,
    UnknownTask,
    Worker,
    current,
)
from treadle.core.model import Claim
from treadle.execution.job_run import JobRun
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle.worker.demand import Demand
from treadle.worker.dispatcher import Dispatcher
from treadle_testkit.shows import shows


class Gate:
    """A task that reports when it has begun, and ends when the test allows it."""

    def __init__(self, app: App, name: str = "gate", **options: Any) -> None:
        self.began: asyncio.Queue[str] = asyncio.Queue()
        self.go, self.cut = asyncio.Event(), asyncio.Event()
        self.cancelled: list[str] = []

        @app.task(name=name, **options)
        async def gate(n: int = 0) -> int:
            here = current()
            self.began.put_nowait(here.id)
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.append(here.id)
                self.cut.set()
                raise
            return n

        self.task = gate


@shows("a worker claims only as many jobs as it has free slots")
async def test_a_worker_claims_as_many_jobs_as_it_has_free_slots(app: App) -> None:
    gate = Gate(app)
    jobs = [await gate.task.enqueue(n) for n in range(5)]
    async with work(app, concurrency=2) as worker:
        for _ in range(2):
            await gate.began.get()
        states = [(await app.jobs.get(job)).state for job in jobs]
        assert states == [State.RUNNING] * 2 + [State.READY] * 3
        assert {row.job.id for row in worker.running} == {job.id for job in jobs[:2]}  # possibly from two claims
        gate.go.set()
        assert await asyncio.gather(*(job.result(timeout=30) for job in jobs)) == [0, 1, 2, 3, 4]


async def test_jobs_enqueued_before_the_worker_started_run_in_order(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def t(n: int) -> None:
        ran.append(n)

    jobs = await app.enqueue([t.options(priority=n // 5).job(n) for n in range(10)])
    async with work(app, concurrency=1):
        await asyncio.gather(*(job.result(timeout=30) for job in jobs))
    assert ran == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]


@shows("a worker leaves the job of an unknown task in its queue")
async def test_the_job_of_an_unknown_task_stays_queued(app: App, told: Told) -> None:
    @app.task
    async def t() -> None: ...

    stranger = await app.stub("of.another.program").enqueue(1)
    async with work(app):
        await (await t.enqueue()).result(timeout=30)
    row = await app.jobs.get(stranger)
    assert (row.state, row.version, row.attempt) == (State.READY, 0, 0)


async def test_a_worker_claims_only_its_tasks_and_queues(app: App) -> None:
    ran: list[str] = []

    @app.task(queue="a")
    async def one() -> None:
        ran.append("one")

    @app.task(queue="a")
    async def two() -> None:
        ran.append("two")

    @app.task(queue="b")
    async def three() -> None:
        ran.append("three")

    jobs = [await one.enqueue(), await two.enqueue(), await three.enqueue()]
    async with work(app, ["a"], tasks=[one]):
        await jobs[0].result(timeout=30)
    async with work(app, {"b": 3}):
        await jobs[2].result(timeout=30)
    assert ran == ["one", "three"]


@shows("the queues of a worker share its claims by weight")
async def test_queues_share_claims_by_weight(app: App, spy: Spy) -> None:
    asks: list[Claim] = []
    inner = spy.inner.claim

    async def claim(ask: Claim) -> Any:
        asks.append(ask)
        return await inner(ask)

    spy.inner.claim = claim  # type: ignore[method-assign]
    async with work(app, {"mail": 3, "bulk": 1}, concurrency=8):
        await spy.until(lambda: len(asks) > 1, "two claims")
    own = [[each for each in ask.queues if each[0] != "treadle"] for ask in asks[:2]]  # without Treadle's own queue
    assert [dict(queues) for queues in own] == [{"mail": 3, "bulk": 1}] * 2
    assert own[0][0] != own[1][0]


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"queues": "mail"},
        {"queues": {"a": 0}},
        {"queues": [""]},
        {"grace": -1},
        {"lease": 0},
        {"poll": 0},
        {"name": " "},
    ],
)
async def test_wrong_settings_are_refused(app: App, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        Worker(app, **options)


async def test_a_worker_of_an_unknown_task_is_refused(app: App) -> None:
    with pytest.raises(UnknownTask, match="nope"):
        await Worker(app, tasks=["nope"]).start()


async def test_a_mistyped_task_names_the_nearest_one(app: App) -> None:
    app.task(name="mail.send")(print_nothing)
    with pytest.raises(UnknownTask, match=r"did you mean 'mail\.send'\?"):
        await Worker(app, tasks=["mail.sned"]).start()


async def print_nothing() -> None: ...


# --- stopping


@shows("a worker that stops cancels its runs after the grace period and releases their jobs uncounted")
async def test_stop_cancels_runs_after_the_grace_and_releases_them_uncounted(app: App, told: Told) -> None:
    gate = Gate(app)
    job = await gate.task.enqueue(7)
    worker = work(app, name="first")
    await worker.start()
    await gate.began.get()
    await worker.stop(grace=0.01)
    assert gate.cancelled == [job.id]
    row = await app.jobs.get(job)
    assert (row.state, row.attempt, row.lost) == (State.READY, 0, 0)
    gate.go.set()
    async with work(app, name="second"):
        assert await job.result(timeout=30) == 7
    assert (
        told.names("worker.started", "worker.stopping", "worker.stopped")
        == [
            "worker.started",
            "worker.stopping",
            "worker.stopped",
        ]
        * 2
    )


async def test_a_job_that_ends_within_the_grace_counts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    told_in_time, stopped = asyncio.Event(), Signal().after(monkeypatch, JobRun, "stop")

    @app.task
    async def t() -> str:
        told_in_time.set()
        await stopped.until(lambda: current().cancelled, "the stop")
        return "in time"

    job = await t.enqueue()
    worker = work(app)
    await worker.start()
    await told_in_time.wait()
    await worker.stop()
    assert await job.result(timeout=0) == "in time"


async def test_a_stop_sets_cancelled_in_a_thread_and_its_result_counts(app: App) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task
    def t() -> str:
        loop.call_soon_threadsafe(began.set)
        assert current().wait(30)
        return "stopped early"

    job = await t.enqueue()
    worker = work(app)
    await worker.start()
    await began.wait()
    await worker.stop()
    assert await job.result(timeout=0) == "stopped early"


async def test_a_thread_that_raises_after_its_notification_is_released(app: App) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task
    def t() -> None:
        loop.call_soon_threadsafe(began.set)
        if current().wait(30):
            raise RuntimeError("told to stop")

    job = await t.enqueue()
    worker = work(app)
    await worker.start()
    await began.wait()
    await worker.stop()
    row = await app.jobs.get(job)
    assert (row.state, row.attempt) == (State.READY, 0)


async def test_a_thread_that_never_ends_keeps_its_lease_and_delays_no_other_job(app: App) -> None:
    began, end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @app.task
    def t() -> None:
        loop.call_soon_threadsafe(began.set)
        end.wait(30)

    job = await t.enqueue()
    worker = work(app)
    await worker.start()
    await began.wait()
    await worker.stop(grace=0)
    assert (await app.jobs.get(job)).state is State.RUNNING
    end.set()


async def test_two_stops_at_once_are_one(app: App, told: Told) -> None:
    gate = Gate(app)
    await gate.task.enqueue()
    worker = work(app)
    await worker.start()
    await gate.began.get()
    await asyncio.gather(worker.stop(grace=0.01), worker.stop(grace=0.01))
    await worker.stop()
    assert told.names("worker.stopped") == ["worker.stopped"]
    assert (await app.storage.stats()).workers == ()


async def test_a_worker_closes_the_app_only_if_it_opened_it(storage: Storage, clock: HandClock) -> None:
    spy = Spy(storage)
    app = App(storage=spy, clock=clock)

    @app.task
    async def t() -> None: ...

    async with work(app):
        assert spy.calls["open"] == 1
        async with app:
            await t.enqueue()
        assert spy.calls["close"] == 0
    assert spy.calls["close"] == 1
    async with app:
        async with work(app):
            pass
        assert (spy.calls["open"], spy.calls["close"]) == (2, 1)
    assert spy.calls["close"] == 2


@shows("a worker that has stopped leaves no task of the event loop behind")
async def test_a_stopped_worker_leaves_no_task_running(app: App) -> None:
    @app.task
    async def t() -> None: ...

    before = asyncio.all_tasks()
    async with work(app):
        await (await t.enqueue()).result(timeout=30)
    await nothing_left(before)


alive: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(eq=False)
class Parcel:
    """An argument that is counted while any reference to it exists."""

    n: int

    def __post_init__(self) -> None:
        alive.add(self)


@pytest.mark.slow
@shows("a worker keeps no memory of the jobs that have ended")
async def test_a_worker_keeps_nothing_of_the_jobs_that_have_ended(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ran: their arguments are gone, except a limited number that does not grow."""
    # pytest keeps log records, with their frames
    monkeypatch.setattr(logging.getLogger("treadle.jobs"), "propagate", False)
    alive.clear()
    async with App(storage=storage) as app:

        @app.task(retry=Retry(attempts=2, base=0))
        async def open_it(parcel: Parcel) -> int:
            if parcel.n % 10 == 0 and current().attempt == 1:
                raise ValueError("again")
            return parcel.n

        async with work(app, concurrency=20) as worker:
            kept = []
            for _ in range(3):
                jobs = await app.enqueue(open_it.job(Parcel(n)) for n in range(400))
                await asyncio.gather(*(job.ended(timeout=60) for job in jobs))
                del jobs
                gc.collect()
                kept.append(len(alive))
                assert len(worker.running) == 0
            assert max(kept) < 300, kept  # timers of the last 128 jobs of each dispatcher, and jobs that are ending
            assert kept[2] - kept[1] < 40, kept  # a tenth of the jobs since: a leak of one in ten would show


PROGRAM = """
import asyncio, sys
from treadle import App, Worker, current

app = App("sqlite:///" + sys.argv[1])

@app.task(name="t")
async def t(n: int) -> int:
    print("began", flush=True)
    if n:
        await asyncio.Event().wait()
    return n

@app.task(name="hung")
def hung() -> None:
    print("began", flush=True)
    import threading
    threading.Event().wait()

asyncio.run(Worker(app, grace=60 if sys.argv[2] == "long" else 0.05).run())
print("ended", flush=True)
"""


async def _program(path: Path, grace: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, str(path), grace, stdout=pipe)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_releases_running_jobs_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "jobs.db"
    async with App(f"sqlite:///{path}") as app:
        job = await app.stub("t").enqueue(1)
        child = await _program(path, "short")
        assert child.stdout is not None
        assert await child.stdout.readline() == b"began\n"
        child.send_signal(number)
        assert await child.stdout.readline() == b"ended\n"
        assert await child.wait() == 0
        row = await app.jobs.get(job)
        assert (row.state, row.attempt) == (State.READY, 0)


@pytest.mark.parametrize("task", ["t", "hung"])
async def test_a_second_signal_stops_the_worker_at_once(tmp_path: Path, task: str) -> None:
    path = tmp_path / "jobs.db"
    async with App(f"sqlite:///{path}") as app:
        await app.stub(task).enqueue(*([1] if task == "t" else []))
        child = await _program(path, "long")
        assert child.stdout is not None
        assert await child.stdout.readline() == b"began\n"
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert await child.stdout.readline() == b"ended\n"
            assert await child.wait() == 0


# --- quiet


async def test_a_worker_with_all_slots_busy_claims_nothing(app: App, spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, decided = Gate(app), Signal().after(monkeypatch, Dispatcher, "_limit")
    jobs = await app.enqueue([gate.task.job(n) for n in range(4)])
    async with work(app, concurrency=2) as worker:
        for _ in range(2):
            await gate.began.get()
        before = spy.calls["claim"] + spy.calls["settle"]
        more = await app.enqueue([gate.task.job(n) for n in range(50)])
        assert worker._core.session is not None
        worker._core.session.state.demand.notify()
        await decided.again("the decision of each dispatcher to go on waiting", times=4)
        assert spy.calls["claim"] + spy.calls["settle"] == before
        gate.go.set()
        await asyncio.gather(*(job.result(timeout=30) for job in (*jobs, *more)))


@shows("a notification starts a new job on an idle worker")
async def test_a_notification_starts_a_new_job_on_an_idle_worker(
    app: App, spy: Spy, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_nothing = Signal().after(monkeypatch, Demand, "nothing")

    @app.task
    async def t() -> None: ...

    async with work(app, poll=3600) as worker:
        await spy.until(lambda: spy.calls["claim"] and spy.calls["watch"], "the first claim and wait")
        await (await t.enqueue()).result(timeout=30)
        before = spy.calls["claim"]
        assert worker._core.session is not None
        state = worker._core.session.state
        await found_nothing.until(lambda: state.demand.watched and not state.wake.is_set(), "a worker at rest")
        assert spy.calls["claim"] - before <= 3


async def test_without_hints_the_poll_finds_it(app: App, spy: Spy, told: Told) -> None:
    spy.deaf = True

    @app.task
    async def t() -> None: ...

    async with work(app, poll=0.01):
        await told.until("worker.started")
        await t.enqueue()
        await told.until("succeeded")


@shows("a delayed job starts when it is due, without a poll")
async def test_a_job_that_is_due_later_is_not_polled_for(tmp_path: Path) -> None:
    async with App("memory://") as app:
        told = Told(app)

        @app.task
        async def t() -> None: ...

        async with Worker(app, poll=3600):
            await t.options(delay=0.05).enqueue()
            await told.until("succeeded")


async def test_a_retry_that_comes_due_while_its_worker_is_busy_runs_elsewhere(
    app: App, told: Told, clock: HandClock
) -> None:
    gate = Gate(app, queue="q")

    @app.task(queue="q", retry=Retry(base=10))
    async def flaky() -> str:
        if current().attempt == 1:
            raise ValueError
        return current().worker

    async with work(app, concurrency=1, name="busy"):
        job = await flaky.enqueue()
        await told.until("retrying")
        await gate.task.enqueue()
        await gate.began.get()
        async with work(app, concurrency=1, name="idle"):
            clock.advance(10)
            assert await job.result(timeout=30) == "idle"
        gate.go.set()


# --- taken away


async def test_a_running_job_cancelled_from_outside_is_cancelled_at_once(app: App, told: Told) -> None:
    gate = Gate(app)
    async with work(app, lease=3600):
        job = await gate.task.enqueue()
        await gate.began.get()
        assert await app.jobs.cancel(job) == 1
        await told.until("cancelled")
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
    assert gate.cancelled == [job.id]
    assert told.names("cancelled", "lost", "failed", "retrying", "succeeded") == ["cancelled"]


@shows("a worker that stalled past its lease settles nothing and emits `lost`")
async def test_a_stalled_worker_past_its_lease_writes_nothing(
    app: App, told: Told, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, beats = Gate(app), heartbeats(monkeypatch)
    stalled = work(app, name="stalled", lease=3600, concurrency=1)  # no room: it must not claim the job again
    await stalled.start()
    job = await gate.task.enqueue(1)
    await gate.began.get()
    await beats.until(lambda: beats.sent, "the first heartbeat")
    clock.advance(3601)
    async with work(app, name="healthy"):
        await gate.began.get()
        row = await app.jobs.get(job)
        assert (row.lost, (row.worker or "").startswith("healthy#")) == (1, True)
        gate.go.set()
        assert await job.result(timeout=30) == 1
        await told.until("lost")
        [event] = told.of("lost")
        assert event.worker == "stalled"
        await told.until("succeeded")
    assert len(told.of("succeeded")) == 1
    await stalled.stop()
    assert (await app.jobs.get(job)).state is State.SUCCEEDED


@shows("a lease that another worker took cancels the run and is no failed attempt")
async def test_a_lost_lease_cancels_the_function_and_is_no_failure(app: App, told: Told, clock: HandClock) -> None:
    gate = Gate(app)
    async with work(app, name="stalled", lease=0.3):
        job = await gate.task.enqueue()
        await gate.began.get()
        other = Claim(worker="other#1", queues=(("default", 1),), limit=1, lease=3600)
        while True:
            clock.advance(1)
            if (await app.storage.claim(other)).records:
                break
        await told.until("lost")
    assert gate.cancelled == [job.id]
    assert told.names("failed", "retrying") == []


@shows("a job that lost `max_lost` workers while it ran alone fails without another run")
async def test_a_poison_pill_is_not_run_again(app: App, clock: HandClock, told: Told) -> None:
    @app.task(max_lost=2)
    async def poison() -> None:
        raise AssertionError("it ran")

    job = await poison.enqueue()
    await lose(app.storage, clock, job.id)
    await lose(app.storage, clock, job.id, times=2, alone=True)
    async with work(app):
        with pytest.raises(JobFailed, match="2 workers were lost") as caught:
            await job.result(timeout=30)
    assert caught.value.reason == "lost"
    assert told.names("started", "failed") == ["failed"]


async def test_a_worker_does_not_take_over_running_jobs_of_an_earlier_one_of_its_name(app: App) -> None:
    gate = Gate(app)
    job = await gate.task.enqueue()
    first = work(app, name="same", concurrency=1)
    await first.start()
    await gate.began.get()
    async with work(app, name="same", concurrency=1):
        other = await gate.task.enqueue()
        assert await gate.began.get() == other.id
        gate.go.set()
        await asyncio.gather(job.result(timeout=30), other.result(timeout=30))
        assert gate.began.empty()
    await first.stop()


@shows("`progress` stores a number and a text, which every process can read while the job runs")
async def test_progress_reaches_the_row_also_from_a_thread(app: App, spy: Spy) -> None:
    done = threading.Event()

    @app.task
    async def calm() -> None:
        await current().progress(0.5, "half")
        await asyncio.Event().wait()

    @app.task
    def thread() -> None:
        current().report(0.25, "a quarter")
        done.wait(30)

    async with work(app, lease=3600) as worker:
        jobs: list[Job[Any, Any]] = [await calm.enqueue(), await thread.enqueue()]

        async def stored() -> list[str | None]:
            notes = [(await app.jobs.get(job)).note for job in jobs]
            return [] if None in notes else notes

        notes = await spy.until(stored, "both notes")
        done.set()
        await worker.stop(grace=0.05)
    assert notes == ['{"progress":0.5,"text":"half"}', '{"progress":0.25,"text":"a quarter"}']


async def test_a_stale_hold_cannot_write_a_note(app: App, clock: HandClock) -> None:
    from treadle.core.model import LeaseRenewal, Presence

    @app.task
    async def t() -> None: ...

    job = await t.enqueue()
    [row] = (await app.storage.claim(Claim(worker="a#1", lease=1))).records
    clock.advance(2)
    [again] = (await app.storage.claim(Claim(worker="b#1", lease=10))).records
    renewal = LeaseRenewal(job.id, row.version, note="from the grave")
    assert (await app.storage.heartbeat(Presence(worker="a"), [renewal], 10)).lost == {job.id}
    assert (await app.jobs.get(job)).note is None
    assert again.version > row.version


# --- the storage is away


@shows("an outage of the storage ends no run and no worker")
@pytest.mark.parametrize("verb", ["claim", "settle", "heartbeat", "watch"])
async def test_an_outage_of_the_storage_ends_no_run(
    app: App, spy: Spy, told: Told, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.core.defaults.RESULT_POLL", 0.01)  # hints fail too
    gate = Gate(app)
    retry = Retry(base=0.001, max=0.002)
    async with work(app, recovery=retry, lease=3600) as worker:
        first = await gate.task.enqueue(1)
        await gate.began.get()
        spy.away[verb] = 5
        if verb == "heartbeat":
            assert worker._core.session is not None
            worker._core.session.state.heartbeat_now.set()
        gate.go.set()
        assert await first.result(timeout=30) == 1
        second = await gate.task.enqueue(2)
        assert await second.result(timeout=30) == 2
    assert gate.cancelled == []
    assert told.names("failed", "retrying", "lost") == []
    if verb in ("claim", "settle"):
        assert told.of("worker.error")


@shows("a call that another transaction holds up is no outage: the worker logs it once and repeats the call")
@pytest.mark.parametrize("verb", ["claim", "settle"])
async def test_a_held_lock_is_no_outage(
    app: App, spy: Spy, told: Told, verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("treadle.worker.outage.LOCKED", 0.001)
    inner, left = getattr(spy.inner, verb), 3

    async def held(*given: Any) -> Any:
        nonlocal left
        if left and given[0]:
            left -= 1
            raise Locked("here", "the row of a job", pid=4711)
        return await inner(*given)

    monkeypatch.setattr(spy.inner, verb, held)

    @app.task(retry=Retry(attempts=1))
    async def t() -> int:
        return 5

    async with work(app):
        assert await (await t.enqueue()).result(timeout=30) == 5
    assert left == 0
    assert told.of("worker.error") == []
    lines = [record.getMessage() for record in caplog.records if "4711" in record.getMessage()]
    assert len(lines) == 1


async def test_an_outcome_is_settled_after_an_outage(app: App, spy: Spy, told: Told) -> None:
    @app.task
    async def t() -> int:
        spy.away["settle"] = 3
        return 5

    async with work(app, recovery=Retry(base=0.001)):
        assert await (await t.enqueue()).result(timeout=30) == 5
    assert told.names("succeeded") == ["succeeded"]


@shows("a background loop that raises is reported and started again")
async def test_a_loop_that_fails_is_started_again(app: App, spy: Spy, told: Told) -> None:
    inner, failed = spy.inner.claim, False

    async def claim(ask: Claim) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("a bug of ours")
        return await inner(ask)

    spy.inner.claim = claim  # type: ignore[method-assign]

    @app.task
    async def t() -> int:
        return 1

    async with work(app, recovery=Retry(base=0.001)):
        assert await (await t.enqueue()).result(timeout=30) == 1
    assert str((await told.until("worker.error")).error) == "a bug of ours"


# --- middleware, accept, throttle


async def test_middleware_goes_around_enqueue_and_run_in_order(app: App) -> None:
    notes: list[str] = []

    class Layer(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            notes.append(f"{self.name} enqueue")
            return await proceed([spec.changed(labels=(*spec.new.labels, self.name)) for spec in specs])

        async def run(self, context: Any, proceed: Any) -> Any:
            notes.append(f"{self.name} {context.attempt} {'+'.join(context.labels)}")
            answer = await proceed()
            notes.append(f"{self.name} after")
            return answer + 1

    app.middleware(Layer("a"))
    app.middleware(Layer("b"))

    @app.task
    def t() -> int:
        notes.append("inside")
        return 0

    async with work(app):
        job = await t.enqueue()
        assert await job.result(timeout=30) == 2
    assert notes == ["a enqueue", "b enqueue", "a 1 a+b", "b 1 a+b", "inside", "b after", "a after"]
    assert [row.job.id for row in (await app.jobs.list(label="b")).records] == [job.id]


async def test_middleware_that_raises_in_run_is_a_failed_attempt(app: App, told: Told, clock: HandClock) -> None:
    calls: list[int] = []

    @app.middleware
    class Broken(Middleware):
        async def run(self, context: Any, proceed: Any) -> Any:
            calls.append(context.attempt)
            raise RuntimeError("broken layer")

    @app.task(retry=Retry(attempts=2))
    async def t() -> None:
        raise AssertionError("it ran")

    async with work(app):
        job = await t.enqueue()
        assert (await told.until("retrying")).delay == 1.0
        clock.advance(1)
        with pytest.raises(JobFailed, match="broken layer"):
            await job.result(timeout=30)
    assert calls == [1, 2]


async def test_middleware_that_raises_in_enqueue_stores_nothing(app: App, spy: Spy) -> None:
    @app.middleware
    class No(Middleware):
        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            raise PermissionError("not you")

    @app.task
    async def t() -> None: ...

    with pytest.raises(PermissionError):
        await t.enqueue()
    assert spy.calls["enqueue"] == 0


@shows("`accept=` declines a job without counting an attempt")
@pytest.mark.parametrize("answer", ["no", "async no", "raises", "exits"])
async def test_accept_declines_uncounted(app: App, told: Told, clock: HandClock, answer: str) -> None:
    asked: list[Record] = []

    def accept(row: Record) -> Any:
        asked.append(row)
        if len(asked) > 1:
            return True
        if answer == "raises":
            raise RuntimeError("accept is broken")
        if answer == "exits":
            raise SystemExit("accept is broken")
        return asyncio.sleep(0, False) if answer == "async no" else False

    @app.task
    async def t() -> int:
        return current().attempt

    async with work(app, accept=accept):
        job = await t.enqueue()
        await told.until("deferred")
        clock.advance(1)
        assert await job.result(timeout=30) == 1
    assert (await app.jobs.get(job)).lost == 0
    assert len(asked) == 2


@shows("`throttle=` pauses the claims of a worker until it returns 0")
async def test_a_throttle_pauses_claims_until_it_returns_0(app: App, spy: Spy, told: Told) -> None:
    asked, paused = asyncio.Queue[None](), True

    async def throttle() -> float:
        asked.put_nowait(None)
        await asyncio.sleep(0)
        return 0.01 if paused else 0

    @app.task
    async def t() -> int:
        return 1

    job = await t.enqueue()
    async with work(app, throttle=throttle):
        for _ in range(3):
            await asked.get()
        assert spy.calls["claim"] == 0
        paused = False
        assert await job.result(timeout=30) == 1


@shows("a `throttle=` that raises pauses nothing")
async def test_a_throttle_that_is_broken_throttles_nothing(app: App) -> None:
    async def throttle() -> float:
        raise RuntimeError("no idea")

    @app.task
    async def t() -> int:
        return 1

    async with work(app, throttle=throttle):
        assert await (await t.enqueue()).result(timeout=30) == 1


# --- inline


@shows("an inline job runs at once in the process that enqueues it")
async def test_inline_runs_in_this_process_at_once(app: App, clock: HandClock) -> None:
    @app.task(queue="far", inline=True, timeout=5)
    async def t(n: int) -> int:
        return n * 2

    assert await (await t.enqueue(4)).result(timeout=30) == 8
    jobs = await app.enqueue(t.job(n) for n in range(5))
    assert await asyncio.gather(*(job.result(timeout=30) for job in jobs)) == [0, 2, 4, 6, 8]
    many = await asyncio.gather(*(t.enqueue(n) for n in range(5)))
    assert await asyncio.gather(*(job.result(timeout=30) for job in many)) == [0, 2, 4, 6, 8]


@shows("an inline job waits for its delay and its limits")
async def test_inline_yields_to_delay_and_limits(app: App, clock: HandClock) -> None:
    @app.task(inline=True)
    async def t() -> None: ...

    await app.limits.set(Limit("shut", slots=0))
    later, shut = await t.options(delay=5).enqueue(), await t.options(limits=["shut"]).enqueue()
    await (await t.enqueue()).result(timeout=30)
    assert [(await app.jobs.get(job)).state for job in (later, shut)] == [State.READY] * 2
    await app.limits.set(Limit("shut"))
    clock.advance(5)
    async with work(app):
        await asyncio.gather(later.result(timeout=30), shut.result(timeout=30))


async def test_inline_is_stored_even_if_it_cannot_be_claimed_now(app: App, spy: Spy) -> None:
    @app.task(inline=True)
    async def t() -> int:
        return 1

    spy.away["claim"] = 1_000_000
    job = await t.enqueue()
    assert (await app.jobs.get(job)).state is State.READY
    spy.away["claim"] = 0
    async with work(app):
        assert await job.result(timeout=30) == 1


async def test_an_inline_job_cancelled_from_outside_is_cancelled(app: App) -> None:
    gate = Gate(app, inline=True)
    job = await gate.task.enqueue()
    await gate.began.get()
    assert await app.jobs.cancel(job) == 1
    await asyncio.wait_for(gate.cut.wait(), 30)
    assert gate.cancelled == [job.id]


# --- events


@shows("listeners receive the events of a run, and one that raises does not harm it", area="Results, events and logs")
async def test_listeners_receive_events_and_their_errors_change_no_run(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    @app.on("started", "succeeded")
    async def later(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(f"{event.name} {event.task} {event.attempt}")

    @app.on("*")
    def broken(event: Event) -> None:
        raise ValueError("a broken listener")

    @app.task(name="t")
    async def t() -> int:
        return 1

    async with work(app):
        assert await (await t.enqueue()).result(timeout=30) == 1
    assert heard == ["started t 1", "succeeded t 1"]
    assert "a broken listener" in caplog.text


async def test_the_events_of_an_app_can_be_read_as_a_stream(app: App) -> None:
    @app.task
    async def t() -> None: ...

    stream = app.events()
    await t.enqueue()
    assert (await anext(stream)).name == "enqueued"
    await stream.aclose()  # type: ignore[attr-defined]


@shows("`StorageUnavailable` is a `ConnectionError`", area="Crashes and outages")
def test_storage_unavailable_is_a_connection_error() -> None:
    assert issubclass(StorageUnavailable, ConnectionError)


@shows("a worker polls for its free slots while the others are busy")
async def test_a_free_slot_is_polled_for_while_the_others_are_busy(
    app: App, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inner, calls, answer = Gate(app), spy.inner.claim, 0, asyncio.Event()
    limit_of, first_waits = Dispatcher._limit, asyncio.Event()
    left_to_first = Signal().after(monkeypatch, Demand, "leave_to_first")
    spy.deaf = True  # no hint helps

    def limit(dispatcher: Dispatcher) -> int:
        found = limit_of(dispatcher)
        if not found and not dispatcher._number:
            first_waits.set()
        return found

    async def claim(ask: Claim) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # the second dispatcher's: its slot is reserved while the first one claims for it
            await answer.wait()
        return await inner(ask)

    spy.inner.claim = claim  # type: ignore[method-assign]
    monkeypatch.setattr(Dispatcher, "_limit", limit)
    await app.enqueue(gate.task.job(n) for n in range(2))
    async with work(app, concurrency=3):
        for _ in range(2):
            await gate.began.get()
        await asyncio.wait_for(first_waits.wait(), 30)
        answer.set()
        await left_to_first.until(lambda: left_to_first.sent, "an empty claim of the second dispatcher")
        late = await gate.task.enqueue(7)
        async with asyncio.timeout(30):
            assert await gate.began.get() == late.id
        gate.go.set()


async def test_a_claimed_job_that_has_not_started_is_released_when_the_worker_stops(app: App) -> None:
    """Many jobs of one claim are started a few at a time, and a stop may come in between."""
    begun, first, go = 0, asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        nonlocal begun
        begun += 1
        first.set()
        await go.wait()

    await app.enqueue(t.job() for _ in range(256))
    worker = Worker(app, concurrency=512, poll=3600)
    await worker.start()
    async with asyncio.timeout(30):
        await first.wait()
    stopping = asyncio.create_task(worker.stop(60))
    await asyncio.sleep(0)
    go.set()
    await stopping
    back = (await app.jobs.list(state="ready", limit=256)).records
    assert [(row.attempt, row.lost, row.worker) for row in back] == [(0, 0, None)] * (256 - begun)
    assert back


async def test_progress_accepts_a_text_with_lone_surrogates(app: App) -> None:
    """The name of a file may contain bytes that are no characters. Noting it must not fail the job."""

    @app.task
    async def t() -> None:
        await current().progress(0.5, "caf\udce9.txt")

    job = await t.enqueue()
    async with work(app):
        assert await job.result(timeout=30) is None


POISONOUS = """
import asyncio, os, sys
from treadle import App
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock, drain

clock = HandClock()
clock.advance(float(sys.argv[2]))
app = App(storage=SqliteStorage(sys.argv[1], now=clock), clock=clock)

@app.task(name="poison", max_lost=2)
async def poison() -> None:
    print("ran", flush=True)
    os._exit(9)

async def main() -> None:
    async with app:
        if float(sys.argv[2]) == 0:
            await poison.options(id="poison").enqueue()
        await drain(app)
        [row] = await app.storage.get(["poison"])
        print(row.state, row.reason, row.lost, (row.error or "").count("was lost"))

asyncio.run(main())
"""


@pytest.mark.slow
@shows("a job that kills its process runs `max_lost` times alone and then fails", area="Crashes and outages")
def test_a_job_that_kills_its_process_is_run_so_often_and_no_more(tmp_path: Path) -> None:
    """Each process runs later by its clock, so that the lease of the one before has expired. Its first run does not
    count: nothing says that no other job ran there."""
    said = []
    for hours in range(5):
        args = [sys.executable, "-c", POISONOUS, str(tmp_path / "jobs.db"), str(hours * 3600)]
        done = subprocess.run(args, capture_output=True, text=True, timeout=60, check=False)
        said.append((done.returncode, done.stdout.strip()))
    assert said[:3] == [(9, "ran")] * 3, said
    assert said[3:] == [(0, "failed lost 3 2")] * 2, said  # the error names both
