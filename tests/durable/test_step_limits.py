"""Steps with limits: each try is a job of its own that obeys them, while the job of the step uses no slot."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, claimed_by_another, error_of
from treadle import (
    Abort,
    App,
    BadOption,
    BadStep,
    Defer,
    JobCancelled,
    Keys,
    Limit,
    Retry,
    Stale,
    State,
    Worker,
    current,
)
from treadle.admin.histories import histories
from treadle.testing import HandClock, drain, replay
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)
KINDS = pytest.mark.parametrize("kind", ["async", "thread"])


def charging(app: App, ledger: Ledger, kind: str, **options: Any) -> Any:
    """A task with a step before one with limits, and one behind it."""

    async def t() -> str:
        await current().step("begin", ledger.do, "begin")
        paid = await current().step.options(limits=["api"], **options)("charge", ledger.do, "charge")
        return await current().step("end", ledger.do, f"end {paid}")

    def thread() -> str:
        current().sync.step("begin", ledger.plain, "begin")
        paid = current().sync.step.options(limits=["api"], **options)("charge", ledger.plain, "charge")
        return current().sync.step("end", ledger.plain, f"end {paid}")

    return app.task(name="t", retry=ONCE)(t if kind == "async" else thread)


@shows("a step obeys limits of its own, and the job waits for them without a slot")
@KINDS
async def test_a_step_waits_for_its_limit(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    await app.limits.set(Limit("api", rate=2, per=60))
    task = charging(app, ledger, kind)
    jobs = [await task.enqueue() for _ in range(3)]
    await drain(app)
    assert (ledger.function_done["begin"], ledger.function_done["charge"]) == (3, 2)
    rows = [await app.jobs.get(job) for job in jobs]
    [waiting] = [row for row in rows if row.state is State.WAITING]
    [step_id] = waiting.after
    assert "a try of its step 'charge', blocked by the limit 'api'" in await app.jobs.explain(waiting)
    own = await app.jobs.explain(step_id)
    assert "the limit 'api'" in own
    assert f"It makes a try of step 'charge' of job {waiting.id} (waiting)." in own
    [_, step] = (await app.jobs.history(waiting)).steps
    assert (step.name, step.value, step.done) == ("charge", step_id, False)
    clock.advance(61)
    await drain(app)
    assert sorted([await job.result(0) for job in jobs]) == [f"end charge {number} 1" for number in (1, 2, 3)]
    assert ledger.function_done["begin"] == 3


@KINDS
async def test_a_slot_of_a_limit_is_held_while_the_step_runs_only(app: App, ledger: Ledger, kind: str) -> None:
    await app.limits.set(Limit("api", slots=1))
    job = await charging(app, ledger, kind).enqueue()
    await drain(app)
    assert await job.result(0) == "end charge 1 1"
    [use] = [use for use in await app.limits.list() if use.key == "api"]
    assert use.used == 0


@shows("each try of a step with limits takes them anew, and nothing holds them between two tries")
@KINDS
async def test_each_try_takes_the_limits_again(app: App, clock: HandClock, ledger: Ledger, kind: str) -> None:
    await app.limits.set(Limit("api", rate=1, per=60))
    ledger.fail["charge"] = 2
    job = await charging(app, ledger, kind, retry=Retry(attempts=3, base=0, jitter=0)).enqueue()
    for tried in (1, 2, 3):
        await drain(app)
        clock.advance(1)
        await drain(app)
        assert ledger.function_done["charge"] == tried
        clock.advance(60)
    assert await job.result(0) == "end charge 3 1"


async def test_a_cost_counts(app: App, clock: HandClock, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", rate=4, per=60))
    task = charging(app, ledger, "async", cost=3)
    jobs = [await task.enqueue() for _ in range(2)]
    await drain(app)
    assert ledger.function_done["charge"] == 1
    clock.advance(61)
    await drain(app)
    assert sorted([await job.result(0) for job in jobs]) == ["end charge 1 1", "end charge 2 1"]


async def test_a_partition_has_its_own_room(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("tenant", rate=1, per=60))

    @app.task
    async def t(tenant: str) -> str:
        return await current().step.options(limits=[f"tenant:{tenant}"])("a", ledger.do, tenant)

    for tenant in ("a", "a", "b"):
        await t.enqueue(tenant)
    await drain(app)
    assert ledger.function_done == {"a": 1, "b": 1}


async def test_steps_of_one_job_obey_their_limits_concurrently(app: App, clock: HandClock, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", rate=2, per=60))

    @app.task(retry=ONCE)
    async def t() -> list[str]:
        step = current().step.options(limits=["api"])
        return await asyncio.gather(*[step(f"s{n}", ledger.do, f"s{n}") for n in range(3)])

    job = await t.enqueue()
    await drain(app)
    assert ledger.function_done.total() == 2
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == ["s0 1", "s1 1", "s2 1"]


async def test_other_branches_begin_nothing_in_the_job_of_a_step(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> list[str]:
        async def sleeps() -> str:
            await current().sleep(60)
            return await current().step("late", ledger.do, "late")

        async with asyncio.TaskGroup() as group:
            late = group.create_task(sleeps())
            limited = group.create_task(current().step.options(limits=["api"])("a", ledger.do, "a"))
        return [late.result(), limited.result()]

    job = await t.enqueue()
    await drain(app)
    assert ledger.function_done == {"a": 1}
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == ["late 1", "a 1"]


@KINDS
async def test_an_error_without_retry_is_one_of_the_attempt(app: App, ledger: Ledger, kind: str) -> None:
    ledger.fail["charge"] = 1
    job = await charging(app, ledger, kind).options(retry=AGAIN).enqueue()
    await drain(app)
    assert await job.result(0) == "end charge 2 1"
    assert (await app.jobs.get(job)).attempt == 2


@KINDS
async def test_a_caught_error_is_decided_once(app: App, ledger: Ledger, kind: str) -> None:
    ledger.fail["charge"] = 1

    @app.task(name="async", retry=AGAIN)
    async def t() -> str:
        try:
            return await current().step.options(limits=["api"])("charge", ledger.do, "charge")
        except ValueError as error:
            await current().sleep(0)
            return await current().step("undo", ledger.do, f"undo {error}")

    @app.task(name="thread", retry=AGAIN)
    def thread() -> str:
        try:
            return current().sync.step.options(limits=["api"])("charge", ledger.plain, "charge")
        except ValueError as error:
            current().sync.sleep(0)
            return current().sync.step("undo", ledger.plain, f"undo {error}")

    job = await (t if kind == "async" else thread).enqueue()
    await drain(app)
    assert await job.result(0) == "undo charge 1"
    assert ledger.function_done["charge"] == 1


async def test_the_last_error_of_a_step_with_retry_is_stored(app: App, ledger: Ledger) -> None:
    ledger.fail["charge"] = 5
    job = await charging(app, ledger, "async", retry=Retry(attempts=2, base=0)).enqueue()
    await drain(app)
    assert ledger.function_done["charge"] == 2
    assert (await error_of(app, job)).startswith("ValueError: charge")
    ledger.fail.clear()
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "end charge 3 1"


async def test_verdicts_of_a_step_are_those_of_its_job(app: App, clock: HandClock, ledger: Ledger) -> None:
    async def refuse() -> None:
        raise Abort("never")

    async def wait() -> str:
        if ledger.plain("wait") == "wait 1":
            raise Defer(30)
        return "waited"

    @app.task(retry=AGAIN)
    async def aborts() -> None:
        await current().step.options(limits=["api"])("a", refuse)

    @app.task(retry=ONCE)
    async def defers() -> str:
        return await current().step.options(limits=["api"])("a", wait)

    aborted, deferred = await aborts.enqueue(), await defers.enqueue()
    await drain(app)
    assert await error_of(app, aborted) == "never"
    assert (await app.jobs.get(deferred)).due_at == pytest.approx(clock.moment + 30)
    clock.advance(31)
    await drain(app)
    assert await deferred.result(0) == "waited"


async def test_a_429_pauses_the_limit_of_the_step(app: App, clock: HandClock, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=1))

    async def call() -> str:
        if (call := ledger.plain("call")) == "call 1":
            raise Defer(until=datetime.fromtimestamp(clock.moment + 30, UTC), limit="api")
        return call

    @app.task(retry=ONCE)
    async def t() -> str:
        return await current().step.options(limits=["api"])("a", call)

    jobs = [await t.enqueue() for _ in range(2)]
    await drain(app)
    assert ledger.function_done["call"] == 1
    clock.advance(31)
    await drain(app)
    assert sorted([await job.result(0) for job in jobs]) == ["call 2", "call 3"]


async def test_a_job_that_something_else_keeps_in_its_slot_waits_for_its_step(
    app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.durable.parking.LOOK", 0.01)
    called = asyncio.Event()

    async def call() -> str:
        called.set()
        return ledger.plain("call")

    @app.task(retry=ONCE)
    async def t() -> str:
        value, _ = await asyncio.gather(current().step.options(limits=["api"])("a", call), called.wait())
        return value

    job = await t.enqueue()
    async with Worker(app, concurrency=2):
        assert await job.result(20) == "call 1"


async def test_a_step_sees_its_job(app: App, ledger: Ledger) -> None:
    async def inner() -> tuple[str, str, str]:
        assert current().workflow == "it"
        await current().step("nested", ledger.do, "nested")
        return current().id, current().step_key("a"), await current().step.options(limits=["db"])("b", ledger.do, "b")

    @app.task(limits=["all"])
    async def t() -> tuple[str, str, str]:
        return await current().step.options(limits=["api"])("a", inner)

    job = await t.options(id="it").enqueue()
    await drain(app)
    assert await job.result(0) == ("it", "it:a", "b 1")
    assert {row.job.root for row in (await app.jobs.list()).records} == {None, "it"}
    assert ledger.function_done == {"nested": 1, "b": 1}


async def test_a_step_inside_of_another_one_has_limits(app: App, ledger: Ledger) -> None:
    async def outer() -> str:
        return await current().step.options(limits=["api"])("inner", ledger.do, "inner")

    @app.task(retry=ONCE)
    async def t() -> str:
        return await current().step("outer", outer)

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == "inner 1"


@shows("a job that is cancelled while a step waits for its limit runs its cleanup, and the step never runs")
async def test_a_cancelled_job_cancels_its_step(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))

    @app.task
    async def t() -> None:
        try:
            current().on_undo(ledger.plain, "undo")
            await current().step.options(limits=["api"])("charge", ledger.do, "charge")
        except JobCancelled:
            await current().step("clean", ledger.do, "clean")
            raise

    job = await t.enqueue()
    await drain(app)
    [step_id] = (await app.jobs.get(job)).after
    await app.jobs.cancel(job)
    await drain(app)
    assert (await app.jobs.get(step_id)).state is State.CANCELLED
    assert ledger.function_done == {"clean": 1, "undo": 1}


async def test_a_cleanup_waits_for_a_step_that_may_still_run(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task
    async def t() -> None:
        current().on_undo(ledger.plain, "undo")
        await current().step.options(limits=["api"])("charge", ledger.do, "charge")

    job = await t.enqueue()
    await claimed_by_another(app, job)
    await app.jobs.cancel(job)
    await drain(app)
    assert not ledger.function_done
    clock.advance(61)
    await drain(app)
    assert ledger.function_done == {"undo": 1}


async def test_code_that_cleans_up_obeys_limits(app: App, clock: HandClock, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", rate=1, per=60))

    async def give_back(what: str) -> None:
        await current().step.options(limits=["api"])(f"give back {what}", ledger.do, what)

    @app.task
    async def t() -> None:
        current().on_undo(give_back, "undo")
        try:
            await current().step("book", ledger.do, "book")
            await current().sleep(1000)
        finally:
            await current().step.options(limits=["api"])("clean", ledger.do, "clean")

    job = await t.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "clean": 1}
    clock.advance(61)
    await drain(app)
    assert ledger.function_done == {"book": 1, "clean": 1, "undo": 1}
    assert {row.state for row in (await app.jobs.list()).records} == {State.CANCELLED, State.SUCCEEDED}


async def test_a_retried_job_takes_the_step_again(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))
    job = await charging(app, ledger, "async").enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    await app.limits.set(Limit("api", slots=1))
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "end charge 1 1"


async def test_a_rerun_and_a_fork_take_the_step_under_its_limits(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=1))
    job = await charging(app, ledger, "async").enqueue()
    await drain(app)
    await app.jobs.rerun(job, from_step="charge")
    await drain(app)
    assert await job.result(0) == "end charge 2 1"
    fork = await app.jobs.fork(job, from_step="charge")
    await drain(app)
    assert (await app.jobs.get(fork)).state is State.SUCCEEDED
    assert ledger.function_done["charge"] == 3


async def test_a_time_limit_ends_the_wait_for_a_limit(app: App, clock: HandClock, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))

    @app.task(retry=ONCE)
    async def t() -> str:
        try:
            async with current().timeout(30):
                return await current().step.options(limits=["api"])("a", ledger.do, "a")
        except TimeoutError:
            return await current().step("late", ledger.do, "late")

    job = await t.enqueue()
    await drain(app)
    [step_id] = (await app.jobs.get(job)).after
    clock.advance(31)
    await drain(app)
    assert await job.result(0) == "late 1"
    assert (await app.jobs.get(step_id)).state is State.CANCELLED


async def test_changed_code_is_refused_in_the_job_of_a_step(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))
    name = ["charge"]

    @app.task(retry=ONCE)
    async def t() -> str:
        return await current().step.options(limits=["api"])(name[0], ledger.do, "charge")

    job = await t.enqueue()
    await drain(app)
    name[0] = "renamed"
    await app.limits.set(Limit("api", slots=1))
    await drain(app)
    assert "began with other code" in await error_of(app, job)
    assert not ledger.function_done


async def test_wrong_limits_are_refused(app: App) -> None:
    errors = []

    @app.task(retry=ONCE)
    async def t() -> None:
        for options in ({"limits": "api"}, {"limits": ["queue:x"]}, {"limits": ["api"], "cost": 0}):
            with pytest.raises(BadOption) as error:
                current().step.options(**options)  # type: ignore[arg-type]
            errors.append(error.value)

        async def ends() -> None:
            async with current().transaction():
                pass

        with pytest.raises(BadStep, match="outside of the step"):
            await current().step.options(limits=["api"])("a", ends)

    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).error is None
    assert len(errors) >= 3


async def test_acts_on_the_job_of_a_step_are_refused(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))
    job = await charging(app, ledger, "async").enqueue()
    await drain(app)
    [step_id] = (await app.jobs.get(job)).after
    with pytest.raises(Stale):
        await app.jobs.pause(step_id)
    with pytest.raises(Stale, match="Treadle's own"):
        await app.jobs.send(step_id, "inbox", 1)
    with pytest.raises(Stale, match="Treadle's own"):
        await app.jobs.rerun(step_id)
    await app.jobs.cancel(step_id)
    await drain(app)
    assert "JobCancelled" in await error_of(app, job)


async def test_a_lost_worker_frees_the_limit_of_a_step(app: App, clock: HandClock, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=1))
    job = await charging(app, ledger, "async").enqueue()
    claimed = await claimed_by_another(app, job)
    assert claimed.job.limits == (("api", 1),)
    await drain(app)
    assert ledger.function_done["charge"] == 0
    clock.advance(1000)
    await drain(app)
    assert await job.result(0) == "end charge 1 1"


async def test_a_history_with_a_try_under_way_is_replayed(app: App, ledger: Ledger) -> None:
    await app.limits.set(Limit("api", slots=0))
    await charging(app, ledger, "async").enqueue()
    await drain(app)
    [replayed] = await replay(app, [one async for one in histories(app._core, {"task": "t"})])
    assert (replayed.stopped_at, replayed.taken) == ("charge", ("begin",))


async def test_large_and_encrypted_results_of_steps_reach_their_job(tmp_path: Path) -> None:
    large = "x" * 3_000

    async def call() -> str:
        return large

    async with App("memory://", keys=Keys(Keys.make("k1")), blobs=str(tmp_path), offload=1_024) as app:

        @app.task(retry=ONCE)
        async def t() -> int:
            assert await current().step("first", call) == large
            return len(await current().step.options(limits=["api"])("a", call))

        job = await t.enqueue()
        await drain(app)
        assert await job.result(0) == len(large)
