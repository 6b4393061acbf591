"""Jobs that run, and jobs that have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.admin.situations.stage import START, Gate, Sentence, Situations, Stage
from tests.kit import work
from treadle import Abort, Key, Retry, State, current
from treadle.core.model import LeaseRenewal, Presence
from treadle.policy.attempts import losses
from treadle.policy.guilt import sharing_note, trial_note

situations = Situations()


@situations.add
async def it_runs(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim()
    await stage.beat()
    stage.clock.advance(5)
    yield "a", f"It has been running on w1 since {START}; its lease lasts another 55 s."


@situations.add
async def it_runs_again_with_progress(stage: Stage) -> AsyncIterator[Sentence]:
    gate = Gate()

    @stage.app.task(name="long")
    async def long() -> None:
        await current().progress(0.4, "two of five")
        await gate()

    await stage.job("a", long)
    [row] = await stage.claim("a")
    await stage.settle(row, State.READY, attempt=1)
    async with work(stage.app, name="w1"):
        await stage.until("a", "40%")
        yield "a", f"It has been running on w1 since {START} (attempt 2), 40% done; its lease lasts another 30 s."
        gate.go.set()


@situations.add
async def a_worker_holds_it_until_it_can_run_alone(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim(lease=5)
    stage.clock.advance(6)
    await stage.beat("w2")
    [row] = await stage.claim(worker="w2")
    yield (
        "a",
        f"Worker 'w2' has held it since {stage.at(6)}, until it can run alone; its lease lasts another 60 s. It is a "
        "suspect, because worker 'w1' was lost, and will be tried alone.",
    )
    await stage.storage.heartbeat(Presence(worker="w2"), [LeaseRenewal("a", row.version, sharing_note(row))], 60)
    yield (
        "a",
        f"It has been running on w2 since {stage.at(6)}; its lease lasts another 60 s. It is a suspect, because "
        "worker 'w1' was lost, and runs next to other jobs.",
    )


@situations.add
async def its_worker_is_silent(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim()
    await stage.beat()
    stage.clock.advance(40)
    yield (
        "a",
        f"It has been running on w1 since {START}; the last heartbeat of w1 came 40 s ago; its lease lasts another "
        "20 s, "
        "after which another worker claims the job.",
    )


@situations.add
async def its_lease_is_over(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim(lease=10)
    stage.clock.advance(15)
    yield (
        "a",
        f"It has been running on w1 since {START}; its lease expired 5 s ago, and no worker serves its queue "
        "'default' to "
        "claim the job again.",
    )


@situations.add
async def its_deadline_is_near(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(expires=90)
    await stage.claim()
    yield (
        "a",
        f"It has been running on w1 since {START}; its lease lasts another 60 s. It fails at {stage.at(90)}, in 90 "
        "s, unless "
        "it has ended by then.",
    )


@situations.add
async def a_worker_gathers_it(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.batch(name="many", size=2, max_wait=1000)
    async def many(items: list[int]) -> list[int]:
        return items

    await many.options(id="a").enqueue(1)
    async with work(stage.app, name="w1"):
        await stage.until("a", "gathers")
        said = await stage.app.jobs.explain("a")
        assert said.startswith(
            "Worker 'w1' gathers it with other jobs of 'many' for one call, which begins when the batch is full, "
            "or at 2023-"
        )
        yield "a", said


# --- ended


@situations.add
async def it_succeeded(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    [row] = await stage.claim()
    await stage.settle(row, result="1")
    yield "a", f"It succeeded at {START} after 1 attempt."


@situations.add
async def it_failed(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="fails", retry=Retry(attempts=1))
    async def fails() -> None:
        raise ValueError("no luck")

    job = await stage.job("a", fails)
    async with work(stage.app, name="w1"):
        await job.ended(timeout=30)
    yield (
        "a",
        f"It failed (error) at {START} after 1 attempt: ValueError: no luck. `treadle jobs retry a` runs it again.",
    )


@situations.add
async def it_aborted(stage: Stage) -> AsyncIterator[Sentence]:
    @stage.app.task(name="aborts")
    async def aborts() -> None:
        raise Abort("no such customer")

    job = await stage.job("a", aborts)
    async with work(stage.app, name="w1"):
        await job.ended(timeout=30)
    said = await stage.app.jobs.explain("a")
    assert said.startswith(f"It failed (aborted) at {START} after 1 attempt: ")
    assert said.endswith("no such customer. `treadle jobs retry a` runs it again.")
    yield "a", said


@situations.add
async def its_deadline_passed(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(expires=5)
    stage.clock.advance(6)
    yield (
        "a",
        f"Its deadline passed at {stage.at(5)}: it fails with the next claim, and no worker is running to make one: "
        "`treadle worker` starts one.",
    )
    await stage.claim()
    yield (
        "a",
        f"It failed (expired) at {stage.at(6)} after 0 attempts: its deadline passed. `treadle jobs retry a` runs "
        "it again.",
    )


@situations.add
async def it_lost_its_workers(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    for alone in (False, True, True, True):
        [row] = await stage.claim("a", lease=5)
        if alone:
            note = *trial_note(row), *losses(row)
            await stage.app.storage.heartbeat(Presence(worker="w1"), [LeaseRenewal("a", row.version, note)], 5)
        stage.clock.advance(6)
    async with work(stage.app, name="w2"):
        await stage.till("a", lambda row: row.state.final)
    yield (
        "a",
        f"It failed (lost) at {stage.at(24)} after 0 attempts: 3 workers were lost while they ran only this job; it "
        "will not run again (max_lost=3): worker 'w1' was lost, worker 'w1' was lost, worker 'w1' was lost. `treadle "
        "jobs retry a` runs it again.",
    )


@situations.add
async def it_was_cancelled(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.app.jobs.cancel("a")
    yield (
        "a",
        f"It was cancelled (asked) at {START} after 0 attempts: cancelled by hand. "
        "`treadle jobs retry a` queues it again.",
    )


@situations.add
async def it_was_cancelled_while_it_ran(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim()
    await stage.beat()
    stage.clock.advance(3)
    await stage.app.jobs.cancel("a")
    said = f"It was cancelled (asked) at {stage.at(3)} after 0 attempts: cancelled by hand."
    said += " `treadle jobs retry a` queues it again."
    yield "a", f"{said} Its function may run on w1 until that worker's next heartbeat, due by {stage.at(13)}."


@situations.add
async def what_it_waited_for_failed(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("up", delay=60)
    await stage.job(after="up")
    await stage.app.jobs.cancel("up")
    yield (
        "a",
        f"It was cancelled (upstream) at {START} after 0 attempts: up, which it waited for, ended as cancelled. "
        "`treadle "
        "jobs retry a` queues it again.",
    )


@situations.add
async def another_job_replaced_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(key=Key("k", conflict="replace"), delay=60)
    await stage.job("new", key=Key("k", conflict="replace"), delay=60)
    await stage.app.jobs.cancel("new")  # or it keeps the key that a retry needs
    yield (
        "a",
        f"It was cancelled (superseded) at {START} after 0 attempts: superseded by new. `treadle jobs retry a` "
        "queues it "
        "again.",
    )
