"""`app.jobs.history`: the last runs of a job and how each ended, steps, signals and children, on every storage."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.kit import Told, work
from treadle import Abort, App, Defer, Retry, UnknownJob, current, flow
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.policy import attempts
from treadle.policy.run_log import LogTail, tail_of
from treadle.testing import HandClock
from treadle_testkit.shows import shows


async def runs(app: App, job: object) -> list[tuple[int, int, str]]:
    found = (await app.jobs.history(job)).attempts  # type: ignore[arg-type]
    return [(each.number, each.reopening, each.outcome) for each in found]


@shows("the history of a job has its last runs: worker, times, outcome and error of each")
async def test_each_run_is_listed_with_its_error(app: App, told: Told, clock: HandClock) -> None:
    @app.task(name="f", retry=Retry(attempts=3, base=10.0, jitter=0.0))
    async def f() -> str:
        clock.advance(2)
        number = len(told.of("started"))
        if number == 1:
            raise Defer(5)
        if number < 4:
            raise ValueError(f"run {number} " + "x" * 5_000)
        return "done"

    start = clock()
    job = await f.enqueue()
    async with work(app, name="w"):
        await told.until("deferred")
        clock.advance(10)
        await told.until("retrying")
        clock.advance(20)
        await told.until("retrying", 2)
        clock.advance(200)
        await told.until("succeeded")
    found = (await app.jobs.history(job)).attempts
    assert await runs(app, job) == [(1, 0, "deferred"), (1, 0, "retrying"), (2, 0, "retrying"), (3, 0, "succeeded")]
    first, second, *_, last = found
    assert (first.started_at, first.ended_at, first.worker, first.delay, first.error) == (
        start,
        start + 2,
        "w",
        5.0,
        None,
    )
    assert second.error is not None
    assert second.error.startswith("ValueError: run 2")
    assert len(second.error) <= attempts.ERROR
    assert (last.error, last.worker, last.ended_at) == (None, "w", clock())


@shows("a job that succeeds at its first attempt stores no history")
async def test_a_first_success_stores_nothing(app: App) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    job = await f.enqueue()
    assert await runs(app, job) == []
    async with work(app):
        await job.ended(timeout=10)
    assert (await app.jobs.get(job)).checkpoints == ()
    assert await runs(app, job) == [(1, 0, "succeeded")]


async def test_the_last_ten_are_kept_also_of_earlier_rounds(app: App, told: Told) -> None:
    @app.task(name="f", retry=Retry(attempts=8, base=0.0))
    async def f() -> None:
        raise ValueError(str(current().attempt))

    job = await f.enqueue()
    async with work(app):
        await told.until("failed")
        await app.jobs.retry(job)
        await told.until("failed", 2)
    expected = [*((n, 0) for n in range(7, 9)), *((n, 1) for n in range(1, 9))]
    found = (await app.jobs.history(job)).attempts
    assert [(each.number, each.reopening) for each in found] == expected
    assert [each.outcome for each in found if each.number == 8] == ["failed", "failed"]
    assert found[-1].reason == "error"
    assert found[-1].error is not None
    assert found[-1].error.startswith("ValueError: 8")


async def test_lost_leases_are_listed_with_the_worker(app: App, clock: HandClock) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    job = await f.enqueue()
    await app.storage.claim(Claim(worker="dead#1", lease=10))
    assert await runs(app, job) == [(1, 0, "running")]
    clock.advance(11)
    await app.storage.claim(Claim(worker="dead-too#1", lease=10))
    clock.advance(11)
    async with work(app, name="alive"):
        await job.ended(timeout=10)
    found = (await app.jobs.history(job)).attempts
    assert [(each.outcome, each.worker) for each in found] == [
        ("lost", None),  # the row names only the last worker that lost it
        ("lost", "dead-too"),
        ("succeeded", "alive"),
    ]


async def test_the_history_has_runs_that_were_aborted_cancelled_or_released(app: App, told: Told) -> None:
    begun = asyncio.Event()

    @app.task(name="aborts")
    async def aborts() -> None:
        raise Abort("never")

    @app.task(name="stays")
    async def stays() -> None:
        begun.set()
        await asyncio.Event().wait()

    gone, kept = await app.enqueue([aborts.job(), stays.job()])
    async with work(app, grace=0.0):
        await told.until("failed")
        await begun.wait()
        await app.jobs.cancel(kept)
        await told.until("cancelled")
        begun.clear()
        released = await stays.enqueue()
        await begun.wait()
    [aborted] = (await app.jobs.history(gone)).attempts
    assert (aborted.outcome, aborted.reason) == ("failed", "aborted")
    assert await runs(app, kept) == [(1, 0, "cancelled")]
    [back] = (await app.jobs.history(released)).attempts
    assert (back.outcome, back.reason) == ("deferred", "released")


@shows("the history of a job has its steps and sleeps, the keys it got once, and its signals")
async def test_steps_sleeps_marks_and_signals(app: App, told: Told, clock: HandClock) -> None:
    @app.task(name="f")
    async def f() -> None:
        here = current()
        await here.step("charge", lambda: {"paid": 7})
        async with here.once("mail:7"):
            pass
        await here.sleep(60)
        await here.wait_for("approved")

    job = await f.enqueue()
    async with work(app):
        await told.until("deferred")
        asleep = {step.name: step for step in (await app.jobs.history(job)).steps}
        assert (asleep["charge"].value, asleep["charge"].kind) == ({"paid": 7}, "step")
        assert [step.done for step in asleep.values() if step.kind == "sleep"] == [False]
        assert (asleep["mail:7"].kind, asleep["mail:7"].done) == ("once", True)
        clock.advance(61)
        await told.until("waiting")
        waits = await app.jobs.history(job)
        assert [(each.name, each.given) for each in waits.signals] == [("approved", False)]
        assert [step.done for step in waits.steps if step.kind == "sleep"] == [True]
        await app.jobs.signal(job, "later", "not yet")
        await app.jobs.signal(job, "approved", {"by": "ann"})
        await told.until("succeeded")
    found = await app.jobs.history(job)
    assert [(step.kind, step.value) for step in found.steps if step.kind == "signal"] == [("signal", {"by": "ann"})]
    signals = {each.name: (each.given, each.value) for each in found.signals}
    assert signals == {"approved": (True, {"by": "ann"}), "later": (True, "not yet")}
    assert not any(step.name.startswith("treadle:") for step in found.steps)
    assert [attempt.outcome for attempt in found.attempts] == ["succeeded"]


@shows("the history of a job names its time limits, with their ends and the waits at which they took effect")
async def test_time_limits_are_no_sleeps(app: App, told: Told, clock: HandClock) -> None:
    @app.task(name="f")
    async def f() -> None:
        here = current()
        with suppress(TimeoutError):
            async with here.timeout(100, name="day"):
                await here.receive("orders", timeout=1_000)
        await here.step.options(retry=Retry(attempts=2, base=60, jitter=0.0))("timeout", fail)
        await here.step("sleep:long", lambda: 7)
        async with here.timeout(3_600):
            await here.sleep(7_200)

    def fail() -> None:
        if len(told.of("deferred")) < 1:
            raise ValueError("no")

    async def steps() -> dict[str, tuple[str, object, bool, bool]]:
        found = (await app.jobs.history(job)).steps
        return {step.name: (step.kind, step.value, step.done, step.failed) for step in found}

    began = clock()
    job = await f.enqueue()
    async with work(app):
        await told.until("waiting")
        assert await steps() == {
            "timeout:day": ("timeout", None, False, False),
            "receive:orders": ("signal", None, False, False),
        }
        assert {step.until for step in (await app.jobs.history(job)).steps} == {began + 100, began + 1_000}
        clock.advance(100)
        await told.until("deferred")
        assert (await steps())["timeout:day"] == ("timeout", "receive:orders", True, True)
        assert (await steps())["timeout"] == ("step", "ValueError: no", False, True)
        clock.advance(60)
        await told.until("deferred", 2)
    assert (await steps())["sleep:long"] == ("step", 7, True, False)
    assert (await steps())["timeout#2"] == ("timeout", None, False, False)
    assert "it sleeps in its time limit 'timeout#2', and runs again" in await app.jobs.explain(job)


async def test_children_are_counted_by_state(app: App, told: Told) -> None:
    @app.task(name="child", retry=Retry(attempts=1))
    async def child(n: int) -> None:
        if n == 2:
            raise ValueError("no")

    @app.task(name="parent")
    async def parent() -> object:
        return flow(child.job(n) for n in range(3))

    job = await parent.enqueue()
    async with work(app):
        await told.until("workflow.ended")
    found = await app.jobs.history(job)
    assert (found.children, found.children_capped) == ({"succeeded": 2, "failed": 1}, False)


async def test_a_row_of_another_program_hides_no_other(app: App) -> None:
    """Checkpoints that cannot be read are left out, or shown as their text."""

    @app.task(name="f")
    async def f() -> None: ...

    job = await f.enqueue()
    [row] = (await app.storage.claim(Claim(worker="w#1"))).records
    odd = (("treadle:attempt:3", "{"), ("treadle:log", "[]"), ("treadle:once:1", "5"), ("mine", "not JSON"))
    await app.storage.heartbeat(Presence(worker="w"), [LeaseRenewal(row.id, row.version, checkpoints=odd)], 30)
    found = await app.jobs.history(job)
    assert [(step.name, step.value) for step in found.steps] == [("mine", "not JSON")]
    assert [attempt.outcome for attempt in found.attempts] == ["running"]
    out = Outcome(id=row.id, version=row.version, state=State.FAILED, attempt=1, error="x", reason="error")
    await app.storage.settle([attempts.noted(row, out, "w", 5.0)])
    assert await runs(app, job) == [(1, 0, "failed")]


def test_numbers_that_no_program_of_ours_writes_do_not_stop_a_worker() -> None:
    """Python reads an integer of 4,300 digits, and cannot write the next one."""
    forged = "9" * 4_300
    odd = tuple(
        (f"treadle:attempt:{number}", f'{{"number":1,"{name}":{value}}}')
        for number, (name, value) in enumerate([("run", forged), ("reopening", forged), ("run", -1)])
    )
    odd = (*odd, ("treadle:log", f'{{"start":{forged},"lines":[]}}'))
    row = Record(job=NewJob(id="a", task="f"), version=1, state=State.RUNNING, checkpoints=odd)
    out = Outcome(id=row.id, version=row.version, state=State.FAILED, attempt=1, error="x", reason="error")
    [(name, _)] = attempts.noted(row, out, "w", 5.0).checkpoints
    assert name == "treadle:attempt:1"
    assert tail_of(row.checkpoints) == LogTail()


async def test_the_history_of_an_unknown_job_raises(app: App) -> None:
    with pytest.raises(UnknownJob):
        await app.jobs.history("nobody")
