"""A step with limits and one that has none: how often the function runs, and which job its effects belong to."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, claimed_by_another, error_of
from treadle import App, Limit, Retry, State, Worker, current
from treadle.testing import HandClock, drain

ONCE = Retry(attempts=1)


def limited(name: str, function: Any, *args: Any, **options: Any) -> Any:
    return current().step.options(limits=["api"], **options)(name, function, *args)


async def test_the_outcome_of_a_try_is_kept_once(app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that something else keeps in its slot looks at its tries more than once."""
    monkeypatch.setattr("treadle.durable.parking.LOOK", 0.01)
    ledger.fail["a"] = 9
    failed = asyncio.Event()

    async def catches() -> str:
        try:
            return await limited("a", ledger.do, "a")
        except ValueError:
            failed.set()
            return "caught"

    @app.task(retry=ONCE)
    async def t() -> list[Any]:
        return await asyncio.gather(catches(), failed.wait())

    @app.task(retry=ONCE)
    async def shields() -> str:
        return await asyncio.shield(limited("b", ledger.do, "b"))

    jobs = [await t.enqueue(), await shields.enqueue()]
    async with Worker(app, concurrency=4):
        assert await jobs[0].result(20) == ["caught", True]
        assert await jobs[1].result(20) == "b 1"
    assert ledger.function_done == {"a": 1, "b": 1}


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_handled_error_of_a_try_outlives_a_suspension(app: App, ledger: Ledger, attempts: int) -> None:
    """Another try suspends the run after the function has handled the error. The next attempt makes another try."""
    ledger.fail.update(a=9, b=9)

    @app.task(retry=Retry(attempts=2, base=0))
    async def t() -> int:
        tries = [limited(name, ledger.do, name) for name in "ab"]
        errors = await asyncio.gather(*tries, return_exceptions=True)
        assert current().attempt == attempts
        return len(errors)

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == 2
    assert ledger.function_done == {"a": attempts, "b": attempts}


async def test_a_reopened_job_tries_its_step_again(app: App, ledger: Ledger) -> None:
    ledger.fail["a"] = 2

    @app.task(retry=AGAIN)
    async def t() -> str:
        return await limited("a", ledger.do, "a")

    job = await t.options(delay=5).enqueue()
    await app.jobs.cancel(job)
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "a 3"


async def test_code_without_the_limits_waits_for_a_try_under_way(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))
    has_limits = [True]

    @app.task(retry=ONCE)
    async def t() -> str:
        return await (limited if has_limits[0] else current().step)("a", ledger.do, "a")

    job = await t.enqueue()
    await drain(app)
    has_limits[0] = False
    await app.limits.set(Limit("api", slots=1))
    await drain(app)
    assert await job.result(0) == "a 1"
    assert ledger.function_done == {"a": 1}


@pytest.mark.parametrize("retry", [None, AGAIN])
async def test_a_value_that_cannot_be_stored_is_final(app: App, ledger: Ledger, retry: Retry | None) -> None:
    async def bad() -> object:
        ledger.plain("bad")
        return object()

    @app.task(retry=AGAIN)
    async def t() -> None:
        try:
            await limited("a", bad, retry=retry)
        except Exception as error:
            raise RuntimeError("wrapped") from error

    job = await t.enqueue()
    await drain(app)
    assert "wrapped" in await error_of(app, job)
    assert ledger.function_done == {"bad": 1}


async def test_a_try_that_was_cut_off_is_made_again(app: App, ledger: Ledger) -> None:
    ledger.fail["a"] = 1
    await app.limits.set(Limit("slow", slots=0))

    @app.task(retry=Retry(attempts=2, base=0))
    async def t() -> list[str]:
        async with asyncio.TaskGroup() as group:
            a = group.create_task(limited("a", ledger.do, "a"))
            b = group.create_task(current().step.options(limits=["slow"])("b", ledger.do, "b"))
        return [a.result(), b.result()]

    job = await t.enqueue()
    await drain(app)
    await app.limits.set(Limit("slow", slots=1))
    await drain(app)
    assert await job.result(0) == ["a 2", "b 1"]


async def test_a_try_runs_in_the_slot_that_its_job_keeps(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("account", slots=1, hold="ended"))

    @app.task(limits=["account:a"])
    async def t() -> str:
        return await limited("a", ledger.do, "a")

    jobs = [await t.enqueue() for _ in range(2)]
    await drain(app)
    assert sorted([await job.result(0) for job in jobs]) == ["a 1", "a 2"]
    await app.limits.set(Limit(f"queue:{t.queue}", slots=2, hold="ended"))
    job = await t.enqueue()
    await drain(app)
    assert "keeps its slot of the limit 'queue:default'" in await error_of(app, job)


async def test_a_try_runs_in_the_slot_that_a_try_around_it_keeps(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("account", slots=1, hold="ended"))

    async def around() -> str:
        return await current().step.options(limits=["account:a"])("inside", ledger.do, "inside")

    @app.task
    async def t() -> str:
        return await current().step.options(limits=["account:a"])("around", around)

    jobs = [await t.enqueue() for _ in range(2)]
    await drain(app)
    assert sorted([await job.result(0) for job in jobs]) == ["inside 1", "inside 2"]


async def test_too_many_steps_with_limits_inside_of_one_another_are_refused_by_that_name(app: App) -> None:
    async def level(number: int) -> int:
        return number if number == 25 else await limited(f"level {number}", level, number + 1)

    @app.task(retry=ONCE)
    async def t() -> int:
        return await level(0)

    job = await t.enqueue()
    await drain(app)
    assert "at most 20 steps with limits may be inside of one another" in await error_of(app, job)


async def cancels_itself() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def exits() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("how", [cancels_itself, exits])
async def test_a_job_decides_how_often_its_step_is_tried(app: App, clock: HandClock, ledger: Ledger, how: Any) -> None:
    async def counted() -> None:
        ledger.plain("a")
        await how()

    @app.task(retry=ONCE)
    async def t() -> None:
        await limited("a", counted)

    job = await t.enqueue()
    await drain(app)
    clock.advance(10_000)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert ledger.function_done == {"a": 1}


@pytest.mark.parametrize("kind", ["task", "thread", "gather"])
async def test_a_step_is_not_tried_again_after_max_lost_workers(
    app: App, clock: HandClock, ledger: Ledger, kind: str
) -> None:
    @app.task(name="task", max_lost=1, retry=AGAIN)
    async def task() -> None:
        await limited("a", ledger.do, "a")

    @app.task(name="thread", max_lost=1, retry=AGAIN)
    def thread() -> None:
        current().sync.step.options(limits=["api"])("a", ledger.plain, "a")

    @app.task(name="gather", max_lost=1, retry=AGAIN)
    async def gather() -> None:
        await asyncio.gather(limited("a", ledger.do, "a"), current().step("b", ledger.do, "b"), return_exceptions=True)

    job = await {"task": task, "thread": thread, "gather": gather}[kind].enqueue()
    await claimed_by_another(app, job)
    clock.advance(1000)
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, row.reason) == (State.FAILED, "lost")
    assert ledger.function_done["a"] == 0


async def test_the_cleanup_of_a_job_that_is_cancelled_alone_waits_for_its_try(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        current().on_undo(ledger.do, "undo")
        await limited("a", ledger.do, "a")

    job = await t.enqueue()
    claimed = await claimed_by_another(app, job)
    await app.jobs.cancel(job, tree=False)
    await drain(app)
    assert not ledger.function_done
    assert (await app.jobs.get(claimed.id)).state is State.CANCELLED
    clock.advance(61)
    await drain(app)
    assert ledger.function_done == {"undo": 1}


async def test_children_of_a_step_have_the_deadline_of_its_job(app: App, clock: HandClock) -> None:
    @app.task
    async def child() -> None: ...

    async def calls() -> None:
        await current().call(child.job())

    @app.task(retry=ONCE)
    async def t() -> None:
        await limited("a", calls)

    job = await t.options(deadline=datetime.fromtimestamp(clock.moment + 100, UTC)).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    [row] = [row for row in (await app.jobs.list()).records if row.job.task == child.name]
    assert row.deadline_at == pytest.approx(clock.moment + 100)


async def test_values_that_a_step_publishes_are_those_of_its_job(tmp_path: Path, app: App) -> None:
    large = "x" * 3_000

    async def publishes() -> None:
        await current().publish("small", 7)
        await current().publish("large", large)

    @app.task(retry=ONCE)
    async def t() -> None:
        await limited("a", publishes)

    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.history(job)).values == {"small": 7, "large": large}
    async with App("memory://", blobs=str(tmp_path), offload=1_024) as other:
        job = await other.task(t.function).enqueue()
        await drain(other)
        assert (await other.jobs.history(job)).values == {"small": 7, "large": large}


async def test_a_lock_of_a_step_is_one_of_its_job(app: App, ledger: Ledger) -> None:
    ledger.fail["a"] = 1

    async def first() -> bool:
        async with current().once("k") as is_first:
            ledger.plain("a")
            return is_first

    @app.task(retry=AGAIN)
    async def t() -> list[bool]:
        inside = await limited("a", first)
        async with current().once("k") as is_first:
            return [inside, is_first]

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == [True, True]


async def test_a_cleanup_begins_when_the_function_of_a_try_has_ended(app: App) -> None:
    """The clock stands still, so no lease passes."""
    began, undone = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        await asyncio.Event().wait()

    async def undo() -> None:
        undone.set()

    @app.task(retry=ONCE)
    async def t() -> None:
        current().on_undo(undo)
        await limited("a", hangs)

    job = await t.enqueue()
    async with Worker(app, concurrency=4):
        await began.wait()
        await app.jobs.cancel(job)
        async with asyncio.timeout(20):
            await undone.wait()
