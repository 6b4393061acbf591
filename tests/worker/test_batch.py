"""Batch tasks: one call for many jobs, each with its own result, retries, times and limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit import Spy, Told, work
from tests.waiting import Signal, patient
from treadle import (
    Abort,
    App,
    BadArgument,
    BadOption,
    BadTask,
    Defer,
    JobCancelled,
    JobFailed,
    Limit,
    Middleware,
    Retry,
    State,
    Worker,
    current,
    current_batch,
)
from treadle.errors import BadStep, NotRunning
from treadle.testing import HandClock, drain
from treadle.worker.running_job import RunningJob
from treadle.worker.state import WorkerState
from treadle_testkit.shows import shows


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Sent when a run is cut short, and when one has ended."""
    return Signal().after(monkeypatch, RunningJob, "stop").after(monkeypatch, WorkerState, "end")


async def told_to_stop(worker: Worker, job: Any, runs: Signal) -> None:
    """Its run here was cut short, or is over already."""
    session = worker._core.session
    assert session is not None
    running = session.state.running
    await runs.until(lambda: job.id not in running or running[job.id].cancelled, "the end of a run")


LONG = 600.0  # seconds; no test waits that long: another cause ends the gathering


class Calls:
    """A batch task that keeps its arguments and reports each call."""

    def __init__(self, app: App, name: str = "double", **options: Any) -> None:
        self.calls: list[list[int]] = []
        self.began: asyncio.Queue[list[int]] = asyncio.Queue()
        self.go = asyncio.Event()
        self.go.set()
        self.task = app.batch(name=name, **options)(self._call)

    async def _call(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.calls.append(list(items))
        self.began.put_nowait(list(items))
        await self.go.wait()
        return [n * 2 if n >= 0 else ValueError(f"below zero: {n}") for n in items]

    async def sent(self, app: App, *numbers: int, **options: Any) -> list[Any]:
        return await app.enqueue([self.task.options(**options).job(n) for n in numbers])


@shows("a full batch is called at once")
async def test_a_full_batch_is_called_at_once(app: App) -> None:
    it = Calls(app, size=3, max_wait=LONG)
    jobs = await it.sent(app, *range(6))
    async with work(app):
        assert [await job.result(30) for job in jobs] == [0, 2, 4, 6, 8, 10]
    assert sorted(map(len, it.calls)) == [3, 3]


@shows("later jobs join the batch that is being gathered")
async def test_later_jobs_join_the_batch(app: App, told: Told) -> None:
    it = Calls(app, size=3, max_wait=LONG)
    async with work(app):
        jobs = []
        for n in range(3):
            jobs += await it.sent(app, n)
            await told.until("started", n + 1)
        assert [await job.result(30) for job in jobs] == [0, 2, 4]
    assert it.calls == [[0, 1, 2]]


@shows("a batch is called after `max_wait` with the jobs that have come")
async def test_a_batch_is_called_after_its_wait_with_the_jobs_that_came(app: App) -> None:
    it = Calls(app, size=50, max_wait=0.01)
    async with work(app):
        [job] = await it.sent(app, 21)
        assert await job.result(30) == 42
    assert it.calls == [[21]]


async def test_a_batch_without_a_wait_has_the_jobs_of_one_claim(app: App) -> None:
    it = Calls(app, size=50, max_wait=0)
    jobs = await it.sent(app, *range(8))
    async with work(app, concurrency=20):
        assert [await job.result(30) for job in jobs] == [n * 2 for n in range(8)]
    assert it.calls == [list(range(8))]


async def test_drain_does_not_wait_for_full_batches(app: App) -> None:
    it = Calls(app, size=4, max_wait=LONG)
    jobs = await it.sent(app, *range(10))
    assert await drain(app) == 10
    assert [await job.result(0) for job in jobs] == [n * 2 for n in range(10)]
    assert sorted(map(len, it.calls), reverse=True) == [4, 4, 2]


@shows("a batch that is being gathered takes no slot")
async def test_gathering_takes_no_slot(app: App, told: Told) -> None:
    it = Calls(app, size=3, max_wait=LONG)

    @app.task
    async def other(n: int) -> int:
        return n

    async with work(app, concurrency=1):
        first = await it.sent(app, 0, 1)
        await told.until("started", 2)
        assert [await (await other.enqueue(n)).result(30) for n in range(3)] == [0, 1, 2]
        last = await it.sent(app, 2)
        assert [await job.result(30) for job in (*first, *last)] == [0, 2, 4]


@shows("the call of a batch takes one slot")
async def test_a_call_takes_one_slot(app: App) -> None:
    it = Calls(app, size=2, max_wait=LONG)
    it.go.clear()
    ran: list[int] = []

    @app.task
    async def other(n: int) -> None:
        ran.append(n)

    async with work(app, concurrency=1):
        jobs = await it.sent(app, 0, 1)
        await it.began.get()
        last = await other.enqueue(1)
        row = await app.jobs.get(last)
        assert (row.state, ran) == (State.READY, [])
        it.go.set()
        await asyncio.gather(last.result(30), *(job.result(30) for job in jobs))


@shows("`by=` gathers a batch for each key")
async def test_by_gathers_a_batch_for_each_key(app: App) -> None:
    it = Calls(app, size=10, max_wait=0.02, by=lambda n: n % 3)
    jobs = await it.sent(app, *range(9))
    async with work(app):
        await asyncio.gather(*(job.result(30) for job in jobs))
    # Claims at the same time may get these jobs in any order.
    assert sorted(map(sorted, it.calls)) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


async def test_a_key_that_raises_fails_its_item_alone(app: App) -> None:
    it = Calls(app, size=10, max_wait=0, by=lambda n: 1 // n, retry=Retry(attempts=1))
    jobs = await it.sent(app, 0, 1)
    await drain(app)
    assert await jobs[1].result(0) == 2
    with pytest.raises(JobFailed, match="ZeroDivisionError"):
        await jobs[0].result(0)


@shows("an exception in the returned list fails its own job only")
async def test_an_exception_in_a_place_fails_that_item_alone(app: App, told: Told) -> None:
    it = Calls(app, size=10, retry=Retry(attempts=2, base=0))
    jobs = await it.sent(app, 1, -1, 2)
    await drain(app)
    assert [await jobs[0].result(0), await jobs[2].result(0)] == [2, 4]
    with pytest.raises(JobFailed, match="below zero: -1"):
        await jobs[1].result(0)
    assert it.calls == [[1, -1, 2], [-1]]
    assert sorted(told.names("succeeded", "retrying", "failed")) == ["failed", "retrying", "succeeded", "succeeded"]


@shows("a `Defer` or an `Abort` in the returned list concerns its own job only")
async def test_a_place_may_defer_or_abort(app: App, clock: HandClock) -> None:
    seen = []

    @app.batch()
    async def t(items: list[str]) -> list[str | Exception]:
        first = {"later": Defer(60), "never": Abort("bad input")}
        answers = [item if item in seen else first.get(item, item) for item in items]
        seen.extend(items)
        return answers

    jobs = await app.enqueue([t.job(word) for word in ("now", "later", "never")])
    await drain(app)
    rows = [await app.jobs.get(job) for job in jobs]
    assert [(row.state, row.attempt, row.reason) for row in rows] == [
        (State.SUCCEEDED, 1, None),
        (State.READY, 0, None),
        (State.FAILED, 1, "aborted"),
    ]
    clock.advance(60)
    await drain(app)
    assert await jobs[1].result(0) == "later"
    assert sorted(seen) == ["later", "later", "never", "now"]


@shows("a batch that raises fails all its jobs, each under its own `Retry`")
async def test_an_exception_fails_all_items_each_by_its_policy(app: App) -> None:
    @app.batch(retry=Retry(attempts=1))
    def t(items: list[int]) -> list[int]:
        raise ConnectionError("refused")

    jobs = await app.enqueue(t.job(1), t.options(retry=Retry(attempts=3, base=60)).job(2))
    await drain(app)
    rows = [await app.jobs.get(job) for job in jobs]
    assert [(row.state, row.attempt) for row in rows] == [(State.FAILED, 1), (State.READY, 1)]
    assert all("ConnectionError: refused" in (row.error or "") for row in rows)


@shows("a batch that does not return a list with an entry for each job fails all of them")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([1], "expected 2, found 1"),
        ([1, 2, 3], "expected 2, found 3"),
        ("12", "found str"),
        ({1: 1, 2: 2}, "found dict"),
        (None, "found NoneType"),
        ((n for n in (1, 2)), "found generator"),
    ],
)
async def test_a_result_that_is_no_list_of_all_fails_all_items(app: App, answer: Any, says: str) -> None:
    @app.batch(retry=Retry(attempts=1))
    async def t(items: list[int]) -> Any:
        return answer

    jobs = await app.enqueue(t.job(1), t.job(2))
    await drain(app)
    for job in jobs:
        with pytest.raises(JobFailed, match=says):
            await job.result(0)


async def test_a_result_that_does_not_fit_fails_its_item_alone(app: App) -> None:
    @app.batch(retry=Retry(attempts=1))
    async def t(items: list[int]) -> list[int]:
        return [1, "two", 3]  # type: ignore[list-item]

    jobs = await app.enqueue([t.job(n) for n in range(3)])
    await drain(app)
    assert [await jobs[0].result(0), await jobs[2].result(0)] == [1, 3]
    with pytest.raises(JobFailed, match="BadResult"):
        await jobs[1].result(0)


async def test_an_item_is_checked_where_it_is_enqueued(app: App) -> None:
    it = Calls(app)
    with pytest.raises(BadArgument, match="item"):
        await it.task.enqueue("one")  # type: ignore[arg-type]
    assert (await it.task([3]))[0] == 6


async def test_plain_functions_run_in_a_thread(app: App) -> None:
    seen: list[bool] = []

    @app.batch()
    def t(items: Sequence[int]) -> Sequence[int]:
        seen.append(threading.current_thread() is threading.main_thread())
        return [n + len(current_batch()) for n in items]

    jobs = await app.enqueue([t.job(n) for n in range(3)])
    await drain(app)
    assert [await job.result(0) for job in jobs] == [3, 4, 5]
    assert seen == [False]


@shows("`current_batch()` gives a batch its jobs")
async def test_a_batch_sees_its_jobs(app: App) -> None:
    ids: list[str] = []

    @app.batch()
    async def t(items: list[int]) -> list[int]:
        ids.extend(here.id for here in current_batch())
        with pytest.raises(NotRunning, match="a batch of 2 jobs"):
            current()
        with pytest.raises(BadStep, match="a job of a batch cannot sleep"):
            await current_batch()[0].sleep(5)
        return items

    @app.task
    async def other() -> None:
        with pytest.raises(NotRunning):
            current_batch()

    jobs = await app.enqueue(t.job(1), t.job(2))
    await other.enqueue()
    await drain(app)
    assert ids == [job.id for job in jobs]
    assert [await job.result(0) for job in jobs] == [1, 2]


async def test_a_job_of_a_batch_takes_steps(app: App) -> None:
    ran: list[int] = []

    async def pay(n: int) -> int:
        ran.append(n)
        return n

    @app.batch(retry=Retry(attempts=2, base=0))
    async def t(items: list[int]) -> list[int]:
        found = [await here.step("pay", pay, item) for here, item in zip(current_batch(), items, strict=True)]
        if len(ran) == 2 and current_batch()[0].attempt == 1:
            raise ValueError
        return found

    jobs = await app.enqueue(t.job(1), t.job(2))
    await drain(app)
    assert [await job.result(0) for job in jobs] == [1, 2]
    assert ran == [1, 2]


async def test_an_item_that_is_cancelled_while_it_waits_leaves_the_batch(app: App, told: Told, runs: Signal) -> None:
    it = Calls(app, size=2, max_wait=LONG)
    async with work(app) as worker:
        first = await it.sent(app, 0)
        await told.until("started")
        await app.jobs.cancel(first[0])
        await told_to_stop(worker, first[0], runs)
        second = await it.sent(app, 1, 2)
        assert [await job.result(30) for job in second] == [2, 4]
    assert [sorted(call) for call in it.calls] == [[1, 2]]
    with pytest.raises(JobCancelled):
        await first[0].result(0)


async def test_an_item_that_is_cancelled_during_the_call_stops_no_other(app: App, runs: Signal) -> None:
    it = Calls(app, size=2, max_wait=LONG)
    it.go.clear()
    async with work(app) as worker:
        jobs = await it.sent(app, 1, 2)
        await it.began.get()
        await app.jobs.cancel(jobs[0])
        await told_to_stop(worker, jobs[0], runs)
        it.go.set()
        assert await jobs[1].result(30) == 4
    with pytest.raises(JobCancelled):
        await jobs[0].result(0)


async def test_the_call_is_cancelled_with_its_last_item(app: App) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @app.batch(size=2, max_wait=LONG)
    async def t(items: list[int]) -> list[int]:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return items

    async with work(app):
        jobs = await app.enqueue(t.job(1), t.job(2))
        async with patient("the call and its end"):
            await began.wait()
            for job in jobs:
                await app.jobs.cancel(job)
            await cancelled.wait()


@shows("each job of a batch has its own timeout, which counts from its claim")
async def test_a_timeout_is_each_items_own_and_counts_from_its_claim(app: App, runs: Signal) -> None:
    it = Calls(app, size=2, max_wait=LONG, retry=Retry(attempts=1))
    it.go.clear()
    async with work(app) as worker:
        short, long = await app.enqueue(it.task.options(timeout=0.02).job(1), it.task.job(2))
        await it.began.get()
        row = await app.jobs.get(short)
        assert row.state is State.RUNNING
        await told_to_stop(worker, short, runs)
        it.go.set()
        assert await long.result(30) == 4
        with pytest.raises(JobFailed, match="longer than its timeout"):
            await short.result(30)
        [alone] = await app.enqueue([it.task.options(timeout=0.02).job(3)])
        with pytest.raises(JobFailed, match="longer than its timeout"):
            await alone.result(30)
    assert list(map(sorted, it.calls)) == [[1, 2]]


async def test_a_call_whose_items_all_timed_out_is_cancelled(app: App) -> None:
    it = Calls(app, size=2, max_wait=LONG, timeout=0.02, retry=Retry(attempts=1))
    it.go.clear()
    async with work(app):
        for job in await it.sent(app, 1, 2):
            with pytest.raises(JobFailed, match="longer than its timeout"):
                await job.result(30)


@shows("a worker that stops releases the jobs that it was gathering")
async def test_a_worker_that_stops_releases_the_gathered_jobs(app: App, told: Told) -> None:
    it = Calls(app, size=3, max_wait=LONG)
    worker = work(app)
    await worker.start()
    jobs = await it.sent(app, 1, 2)
    await told.until("started", 2)
    await worker.stop()
    rows = [await app.jobs.get(job) for job in jobs]
    assert [(row.state, row.attempt, row.lost) for row in rows] == [(State.READY, 0, 0)] * 2
    assert it.calls == []


async def test_stopping_lets_a_call_end(app: App) -> None:
    it = Calls(app, size=2, max_wait=LONG)
    it.go.clear()
    worker = work(app)
    await worker.start()
    jobs = await it.sent(app, 1, 2)
    await it.began.get()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    it.go.set()
    await stopping
    assert [await job.result(0) for job in jobs] == [2, 4]


async def test_stopping_without_grace_releases_the_call(app: App) -> None:
    it = Calls(app, size=2, max_wait=LONG)
    it.go.clear()
    worker = work(app)
    await worker.start()
    jobs = await it.sent(app, 1, 2)
    await it.began.get()
    await worker.stop(grace=0)
    rows = [await app.jobs.get(job) for job in jobs]
    assert [(row.state, row.attempt) for row in rows] == [(State.READY, 0)] * 2


async def test_a_limit_counts_items(app: App) -> None:
    await app.limits.set(Limit("api", slots=2))
    it = Calls(app, size=10, max_wait=0, limits=["api"])
    jobs = await it.sent(app, *range(6))
    async with work(app):
        await asyncio.gather(*(job.result(30) for job in jobs))
    assert max(map(len, it.calls)) <= 2


@shows("a claim takes as many jobs of a batch task as its batch has room for")
async def test_the_room_of_a_claim_is_what_a_call_has_left(app: App, told: Told, runs: Signal) -> None:
    it = Calls(app, size=2, max_wait=LONG, by=lambda n: n)
    async with work(app, concurrency=10) as worker:
        jobs = await it.sent(app, *range(2))
        await told.until("started", 2)
        more = await it.sent(app, *range(2, 8))
        assert {(await app.jobs.get(job)).state for job in more} == {State.READY}
        await app.jobs.cancel(jobs[0])
        await told_to_stop(worker, jobs[0], runs)
        await told.until("started", 3)


async def test_accept_middleware_and_events_are_each_items(app: App, told: Told) -> None:
    seen: list[tuple[str, int]] = []

    class Layer(Middleware):
        async def run(self, context: Any, proceed: Any) -> Any:
            found = await proceed()
            seen.append((context.id, found))
            return found + 1

    app.middleware(Layer)
    it = Calls(app, size=2, max_wait=0)
    jobs = await it.sent(app, 1, 2)
    async with Worker(app, poll=0.01, accept=lambda row: row.id != jobs[0].id):
        assert await jobs[1].result(30) == 5
    assert seen == [(jobs[1].id, 4)]
    assert (await app.jobs.get(jobs[0])).attempt == 0


async def test_the_result_of_the_job_before(app: App) -> None:
    it = Calls(app)

    @app.task
    async def first() -> int:
        return 21

    up = await first.enqueue()
    job = await it.task.options(after=up, pass_result=True).enqueue()  # type: ignore[call-arg]
    await drain(app)
    assert await job.result(0) == 42


async def test_inline_and_under_testing(app: App) -> None:
    it = Calls(app, max_wait=0)
    [job] = await it.sent(app, 21, inline=True)
    assert await job.result(30) == 42
    async with app.testing() as t:
        [job] = await it.sent(app, 1)
        assert t.enqueued(it.task)[0].args == (1,)
        assert await t.drain() == 1
        assert await job.result(0) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 0}, "expected 1 to 512 items, found 0"),
        ({"size": 513}, "found 513"),
        ({"max_wait": -1}, "max_wait"),
        ({"by": "key"}, "expected a function"),
        ({"kind": "process"}, "cannot have kind"),
        ({"kind": "batch"}, "expected"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_wrong_options_of_a_batch_are_refused(options: dict[str, Any], says: str) -> None:
    def t(items: list[int]) -> list[int]:
        return items

    with pytest.raises((BadOption, BadTask), match=says):
        App("memory://").batch(**options)(t)


def test_functions_that_cannot_be_a_batch_are_refused() -> None:
    app = App("memory://")

    def two(a: list[int], b: int) -> list[int]:
        return a

    def none() -> list[int]:
        return []

    def one(item: int) -> int:
        return item

    def text(items: str) -> str:
        return items

    def unknown(items: list[Missing]) -> list[int]:  # type: ignore[name-defined]  # noqa: F821
        return []

    for wrong in (two, none, one, text, unknown, 3):
        with pytest.raises(BadTask):
            app.batch()(wrong)  # type: ignore[call-overload]
    ok = app.batch(name="ok")(lambda items: items)
    with pytest.raises(BadTask, match="is already a task"):
        app.batch()(ok)


@shows("inline jobs of a batch task are gathered in one call")
async def test_inline_items_are_gathered_in_one_call(app: App) -> None:
    it = Calls(app, size=5, max_wait=LONG)
    jobs = await it.sent(app, *range(4), inline=True)
    assert it.calls == []  # four of five wait for the fifth
    jobs += await it.sent(app, 4, inline=True)
    assert [await job.result(30) for job in jobs] == [0, 2, 4, 6, 8]
    assert it.calls == [[0, 1, 2, 3, 4]]


async def test_a_backlog_takes_few_trips_for_each_call(app: App, spy: Spy) -> None:
    """A worker of 20 slots fills a call of 50 in three claims: items that wait take no slot, and the other dispatcher
    does not claim meanwhile. With claims that find nothing these are four to six trips for each call, otherwise ten or
    more."""
    doubling = Calls(app, size=50, max_wait=LONG)
    await app.enqueue([doubling.task.job(n) for n in range(500)])
    worker = Worker(app, concurrency=20)
    async with worker:
        for _ in range(10):
            await asyncio.wait_for(doubling.began.get(), 30)
        trips = spy.calls["settle_claim"] + spy.calls["claim"]
    assert [len(call) for call in doubling.calls] == [50] * 10
    assert trips <= 8 * 10
