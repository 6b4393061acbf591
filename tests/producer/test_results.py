"""Waiting for the result of a job, in the same process and from others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.kit import Spy, Told, nothing_left, work
from treadle import (
    Abort,
    App,
    JobCancelled,
    JobExpired,
    JobFailed,
    Retry,
    StorageUnavailable,
    UnknownJob,
    all_done,
    current,
)
from treadle.core import defaults
from treadle.core.model import Claim, Record
from treadle.policy import judge
from treadle.producer.client import Client
from treadle.producer.client_parts import ClientParts
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.shows import shows


async def test_each_ending_has_its_own_result_or_error(app: App, clock: HandClock) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t(how: str) -> str:
        if how == "abort":
            raise Abort("enough")
        if how == "fail":
            raise ValueError("x")
        return how

    good = await t.enqueue("good")
    fail, abort = await t.enqueue("fail"), await t.enqueue("abort")
    gone = await t.options(delay=60).enqueue("late")
    late = await t.options(delay=60, expires=1).enqueue("late")
    assert await app.jobs.cancel(gone) == 1
    clock.advance(2)
    async with work(app):
        assert await good.result(timeout=30) == "good"
        with pytest.raises(JobFailed, match="x") as failed:
            await fail.result(timeout=30)
        with pytest.raises(JobFailed, match="enough"):
            await abort.result(timeout=30)
        with pytest.raises(JobCancelled) as cancelled:
            await gone.result(timeout=30)
        with pytest.raises(JobExpired):
            await late.result(timeout=30)
    assert (failed.value.id, failed.value.reason) == (fail.id, "error")
    assert cancelled.value.reason == "asked"


@shows("`app.jobs.handle` of an unknown id raises `UnknownJob`")
async def test_a_job_that_is_not_there_is_unknown(app: App) -> None:
    with pytest.raises(UnknownJob, match="nobody"):
        await app.jobs.handle("nobody")


@shows("a call of `result` that times out leaves no task behind")
@pytest.mark.parametrize("timeout", [0, 0.01, timedelta(milliseconds=10)])
async def test_a_timeout_leaves_nothing_behind(app: App, timeout: float | timedelta) -> None:
    @app.task
    async def t() -> None: ...

    job = await t.enqueue()
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        await job.result(timeout=timeout)
    await nothing_left(before)


@shows("`result` of a job that has ended returns at once")
async def test_an_ended_job_is_seen_without_waiting(app: App) -> None:
    @app.task
    async def t() -> int:
        return 5

    async with work(app):
        job = await t.enqueue()
        await job.result(timeout=30)
    assert await job.result(timeout=0) == 5


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind(app: App) -> None:
    @app.task
    async def t() -> None: ...

    job = await t.enqueue()
    before = asyncio.all_tasks()
    waiter = asyncio.create_task(job.result())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])
    await nothing_left(before)


async def test_many_wait_for_one_and_share_their_trips(app: App, spy: Spy) -> None:
    go = asyncio.Event()

    @app.task
    async def t() -> int:
        await go.wait()
        return 7

    async with work(app):
        job = await t.enqueue()
        waiters = [asyncio.create_task(job.result(timeout=30)) for _ in range(100)]
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*waiters) == [7] * 100
    assert spy.calls["get"] < 20


@shows("another app on the same storage waits for a job by its id")
async def test_another_app_on_the_same_storage_waits_by_id(storage: Storage, clock: HandClock) -> None:
    async with App(storage=storage, clock=clock) as one:

        @one.task(name="t")
        async def t() -> list[int]:
            return [1, 2]

        stranger = App(storage=storage, clock=clock)
        job = await t.enqueue()
        handle = await stranger.jobs.handle(job.id)
        assert handle == job
        async with work(one):
            assert await handle.result(timeout=30) == [1, 2]
        [seen] = await stranger.enqueue([stranger.stub("t").job()])
        assert seen.task == "t"
        await stranger.close()


@shows("`result` continues to wait when the wait for a notification fails")
async def test_a_result_is_awaited_over_a_short_outage(app: App, spy: Spy) -> None:
    @app.task
    async def t() -> int:
        return 1

    job = await t.enqueue()
    spy.away["watch"] = 1
    async with work(app):
        assert await job.result(timeout=30) == 1
    spy.away["get"] = 1
    with pytest.raises(StorageUnavailable):
        await job.result(timeout=30)


@shows("an error of one of many concurrent enqueues reaches its own caller only", area="Enqueuing jobs")
async def test_a_hundred_at_once_are_a_few_trips_and_each_error_is_its_callers_alone(app: App, spy: Spy) -> None:
    from treadle import Key, KeyHeld

    @app.task
    async def t(n: int) -> int:
        return n

    first = await t.options(key="k").enqueue(0)
    spy.calls.clear()
    bound = t.options(key=Key("k", conflict="raise"))
    answers = await asyncio.gather(
        *(t.enqueue(n) for n in range(50)), bound.enqueue(1), *(t.enqueue(n) for n in range(50)), return_exceptions=True
    )
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(answers) - len(errors) == 100
    [error] = errors
    assert isinstance(error, KeyHeld)
    assert (error.key, error.id) == ("k", first.id)
    assert (await app.jobs.list(task=t, limit=0, count=True)).total == 101


# --- the results that a job gets from the jobs it waited for


async def test_pass_result_is_the_first_argument(app: App) -> None:
    @app.task
    async def number() -> set[int]:
        return {1, 2}

    @app.task(pass_result=True)
    async def add(found: set[int], more: int) -> int:
        assert isinstance(found, set)
        return sum(found) + more

    @app.task
    def add_in_thread(found: set[int], *, more: int = 1) -> int:
        return sum(found) + more

    async with work(app):
        up = await number.enqueue()
        down = await add.options(after=up).enqueue(10)  # type: ignore[call-arg, arg-type]
        [other] = await app.enqueue([add_in_thread.options(pass_result=True).job(more=4)], after=up)  # type: ignore[call-arg]
        assert await down.result(timeout=30) == 13
        assert await other.result(timeout=30) == 7


async def test_pass_result_without_exactly_one_upstream_fails_the_job(app: App) -> None:
    @app.task(pass_result=True, retry=Retry(attempts=1))
    async def t(found: int) -> None: ...

    async with work(app):
        with pytest.raises(JobFailed, match="exactly one job in after=, found 0"):
            await (await t.enqueue()).result(timeout=30)  # type: ignore[call-arg]


async def test_upstream_answers_in_order_with_an_exception_for_what_failed(app: App, spy: Spy) -> None:
    @app.task(retry=Retry(attempts=1))
    async def part(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n * 10

    @app.task
    async def whole() -> list[str]:
        return [repr(each) if isinstance(each, int) else type(each).__name__ for each in await current().upstream()]

    async with work(app):
        parts = await app.enqueue(part.job(n) for n in (3, 2, 1))
        job = await whole.options(after=parts, when=all_done()).enqueue()
        assert await job.result(timeout=30) == ["30", "JobFailed", "10"]


async def test_upstream_from_a_thread_and_without_any(app: App) -> None:
    @app.task
    async def up() -> int:
        return 4

    @app.task
    def down() -> list[int]:
        return app.sync.call(current().upstream())

    async with work(app):
        job = await up.enqueue()
        assert await (await down.options(after=job).enqueue()).result(timeout=30) == [4]
        assert await (await down.enqueue()).result(timeout=30) == []


async def test_an_outage_while_the_first_argument_is_read_counts_no_attempt(
    app: App, spy: Spy, told: Told, clock: HandClock
) -> None:
    @app.task
    async def up() -> int:
        return 4

    @app.task(pass_result=True, retry=Retry(attempts=1))
    async def down(n: int) -> int:
        return n + current().attempt

    async with work(app):
        first = await up.enqueue()
        await first.result(timeout=30)
        spy.away["get"] = 1
        job = await down.options(after=first).enqueue()  # type: ignore[call-arg]
        await told.until("deferred")
        clock.advance(2)
        assert await job.result(timeout=30) == 5


class EndsLate(Spy):
    """The job ends between the first read and the second, and no notification is sent."""

    job = ""

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        found = await super().get(ids)
        if self.calls["get"] == 1:
            [row] = (await self.inner.claim(Claim(worker="w#1", ids=(self.job,)))).records
            await self.inner.settle([judge.succeeded(row, "7")])
        return found


async def test_a_wait_looks_a_last_time_at_its_deadline(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification of the ending is lost, and the next poll is an hour away."""
    monkeypatch.setattr(defaults, "RESULT_POLL", 3600.0)

    @app.task
    async def t() -> int:
        return 7

    job = await t.enqueue()
    late = EndsLate(spy.inner)
    late.deaf, late.job = True, job.id

    async def opened() -> Storage:
        return late

    client = Client(opened, lambda: late, app._core.bound, app._core.emitter, app._core.tasks, ClientParts())
    assert (await client.ended(job.id, 0.01)).result == "7"


async def test_the_error_of_a_timeout_names_the_job_and_its_state(app: App) -> None:
    """The job, the seconds, its state, and what to do."""

    @app.task(name="mail")
    async def mail() -> None: ...

    job = await mail.enqueue()
    said = (
        f"mail {job.id} has not ended in 0.01 s: it is ready, and continues; `treadle jobs explain {job.id}` says why"
    )
    for wait in (job.result, job.ended, job.workflow.result):
        with pytest.raises(TimeoutError) as caught:
            await wait(timeout=0.01)
        assert str(caught.value) == said
    with pytest.raises(TimeoutError, match=f"mail {job.id} has not ended: it is ready"):
        await job.result(timeout=0)
