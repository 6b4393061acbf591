"""Jobs that are not due, or wait for other jobs, for a signal, for a caller or for the holder of their key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from tests.admin.situations.stage import START, Sentence, Situations, Stage
from tests.kit import work
from treadle import App, Defer, Key, Limit, Retry, State, current
from treadle.core.model import NewJob
from treadle.storage.optional_parts import Movable
from treadle.storage.transfer import MoveState

situations = Situations()


@situations.add
async def it_is_delayed(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(delay=90)
    yield (
        "a",
        f"It is not queued yet: it is due at {stage.at(90)}, in 90 s; `treadle jobs run-now a` queues it at once.",
    )


@situations.add
async def its_last_attempt_failed(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="fails", retry=Retry(base=60, jitter=0))
    async def fails() -> None:
        raise ValueError("no luck")

    await stage.job("a", fails)
    async with work(stage.app, name="w1"):
        await stage.till("a", lambda row: row.attempt == 1 and row.state is State.READY)
    yield (
        "a",
        f"It is not queued yet: attempt 1 failed and the next one is due at {stage.at(60)}, in 60 s (ValueError: "
        "no luck); "
        "`treadle jobs run-now a` queues it at once.",
    )


@situations.add
async def its_run_deferred_it(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="defers")
    async def defers() -> None:
        raise Defer(300)

    await stage.job("a", defers)
    async with work(stage.app, name="w1"):
        await stage.till("a", lambda row: row.started_at is not None and row.state is State.READY)
    yield (
        "a",
        f"It is not queued yet: its run of {START} has deferred it, and it is due at {stage.at(300)}, in 300 s; "
        "`treadle "
        "jobs run-now a` queues it at once.",
    )


@situations.add
async def it_sleeps_in_a_step(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="sleeps")
    async def sleeps() -> None:
        await current().sleep(3600)

    await stage.job("a", sleeps)
    async with work(stage.app, name="w1"):
        await stage.till("a", lambda row: row.started_at is not None and row.state is State.READY)
    said = await stage.app.jobs.explain("a")
    assert said.startswith("It is not queued yet: it sleeps in its step ")
    assert said.endswith(
        f", and runs again at {stage.at(3600)}, in 3,600 s; `treadle jobs run-now a` queues it at once."
    )
    yield "a", said


@situations.add
async def another_queue_holds_its_lock(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="charges")
    async def charges() -> None:
        async with current().once("charge:7"):
            await current().sleep(7_200)

    await stage.job("b", charges, queue="other")
    async with work(stage.app, ["other"], name="w0"):
        await stage.till("b", lambda row: row.started_at is not None and row.state is State.READY)
    await stage.job("a", charges)
    async with work(stage.app, ["default"], name="w1"):
        await stage.till("a", lambda row: row.started_at is not None and row.state is State.READY)
    yield (
        "a",
        "It is not queued yet: it is kept from the once-lock 'charge:7': another queue holds it; it tries again at "
        f"{stage.at(30)}, in 30 s; `treadle jobs run-now a` queues it at once.",
    )


@situations.add
async def its_schedule_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.app.schedules.upsert("nightly", stage.task.job(), cron="0 3 * * *")
    await stage.app.schedules.pause("nightly")
    row = await stage.app.schedules.get("nightly")
    yield (
        row.id,
        "It is the schedule 'nightly', which is paused: `treadle schedules resume nightly` resumes it.",
    )


@situations.add
async def one_job_must_end(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("up", delay=60)
    await stage.job(after="up")
    yield "a", "It waits: 1 more job must end, of up (t, ready; `treadle jobs explain up` says why)."


@situations.add
async def a_running_job_must_end(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("up")
    await stage.claim("up")
    await stage.job(after="up")
    yield (
        "a",
        f"It waits: 1 more job must end, of up (t, running on w1 since {START}; `treadle jobs explain up` says why).",
    )


@situations.add
async def several_jobs_must_end(stage: Stage) -> AsyncIterator[Sentence]:
    for number in range(5):
        await stage.job(f"up{number}", delay=60)
    await stage.job(after=[f"up{number}" for number in range(5)])
    yield "a", "It waits: 5 more jobs must end, of up0, up1, up2 and 2 more."


@situations.add
async def a_job_that_is_not_stored_yet(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(after="stranger", wait_timeout=600)
    yield (
        "a",
        f"It waits: 1 more job must end, of stranger, until {stage.at(600)} at most; not stored yet: stranger.",
    )


@situations.add
async def some_of_several_must_end(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("up0", delay=60)
    await stage.job("up1", delay=60)
    await stage.raw("a", after=("up0", "up1"), required=1)
    yield "a", "It waits: 1 more job must end, of up0, up1."


@situations.add
async def a_signal(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="asks")
    async def asks() -> None:
        await current().wait_for("approved")

    await stage.job("a", asks)
    async with work(stage.app, name="w1"):
        await stage.till("a", lambda row: row.state is State.WAITING)
        yield "a", "It waits for the signal 'approved': `treadle jobs signal a approved` sends it."


@situations.add
async def a_signal_with_a_timeout(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="asks")
    async def asks() -> None:
        await current().wait_for("approved", timeout=60)

    await stage.job("a", asks)
    async with work(stage.app, name="w1"):
        await stage.till("a", lambda row: row.state is State.WAITING)
        yield (
            "a",
            f"It waits for the signal 'approved', until {stage.at(60)} at most: `treadle jobs signal a approved` "
            "sends it.",
        )


@situations.add
async def a_promise(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.storage.enqueue([NewJob(id="a", task="")])
    yield "a", "It is a promise: it waits until a caller settles it."


@situations.add
async def a_promise_must_be_settled(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.storage.enqueue([NewJob(id="p", task="")])
    await stage.job(after="p")
    yield "a", "It waits: 1 more job must end, of p (a promise, waiting; `treadle jobs explain p` says why)."


@situations.add
async def its_children_must_end(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    [row] = await stage.claim("a")
    child = NewJob(id="child", task="t", parent="a", root="a", delay=60.0)
    await stage.settle(row, State.WAITING, 1, after=("child",), followups=(child,), function_done=True)
    yield (
        "a",
        "It has run and waits for its children: 1 more job must end, of child (t, ready; `treadle jobs explain "
        "child` says "
        "why).",
    )


@situations.add
async def the_former_holder_of_its_key_runs(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("old", key=Key("k", conflict="replace"))
    await stage.claim("old")
    await stage.job(key=Key("k", conflict="replace"))
    yield (
        "a",
        f"It waits for t old, which held its key 'k' before and runs on w1 since {START}: `treadle jobs cancel "
        "old` ends "
        "that job.",
    )


@situations.add
async def the_storage_is_being_moved(stage: Stage) -> AsyncIterator[Sentence]:
    inner = cast("Movable", stage.storage.inner)
    if not inner.capabilities.marks or not inner.capabilities.movable:
        return
    await stage.job()
    await inner.set_mark(MoveState(role="closing", other="redis://new", move="m", run="r"))
    stage.app = App(storage=inner, clock=stage.clock)
    yield (
        "a",
        "Its storage is being moved to redis://new: no job starts here any more, and it runs there afterwards; "
        "`treadle "
        "storage move SOURCE redis://new --abort` aborts the move.",
    )


@situations.of_queue
async def a_full_queue_has_shed_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.app.limits.set(Limit("queue:default", max_waiting=1, when_full="drop_oldest"))
    await stage.job()
    await stage.job("b")
    yield (
        "a",
        f"It was cancelled at {START}, before it ran, by an enqueue: queue default was full: max_waiting is 1. The "
        "rule 'queue:default' cancels the jobs that were queued first when the queue is full; `treadle limits set "
        "queue:default --max-waiting 2 --when-full drop_oldest` doubles its bound. `treadle jobs retry a` queues it "
        "again, and needs no room.",
    )


@situations.of_queue
async def a_queue_that_refuses_now_has_shed_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.app.limits.set(Limit("queue", slots=5, max_waiting=1, when_full="drop_oldest"))
    await stage.job()
    await stage.job("b")
    await stage.app.limits.set(Limit("queue", slots=5, max_waiting=3))
    yield (
        "a",
        f"It was cancelled at {START}, before it ran, by an enqueue: queue default was full: max_waiting is 1. Now "
        "the rule 'queue' refuses new jobs instead; `treadle limits set queue --slots 5 --max-waiting 6` doubles "
        "its bound. `treadle jobs retry a` queues it again, and needs no room.",
    )
