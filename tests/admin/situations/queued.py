"""Queued jobs that no limit blocks: workers, their slots, and who is ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.admin.situations.stage import START, Gate, Sentence, Situations, Stage
from tests.kit import work
from treadle.core.model import NewJob, Outcome, State
from treadle.policy.misfits import left_to_others

situations = Situations()
CALM = "a worker of 'default' will claim it shortly."


@situations.add
async def next_in_its_queue(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.beat()
    yield "a", f"It is next in its queue; {CALM}"
    stage.clock.advance(5)
    yield "a", f"It is next in its queue; {CALM} It has waited since {START}."


@situations.add
async def no_worker_serves_the_queue(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(queue="mail & co")
    await stage.beat()
    yield (
        "a",
        "It is queued, and no worker serves its queue 'mail & co': `treadle worker --queues 'mail & co'` starts one.",
    )


@situations.add
async def the_only_worker_lacks_the_task(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.beat(tasks=("other",))
    yield "a", "It is queued, and the only worker of 'default' does not have the task 't'."
    await stage.beat("w2", tasks=("another",))
    yield "a", "It is queued, and none of the 2 workers of 'default' has the task 't'."


@situations.add
async def behind_others_with_free_slots(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("first")
    stage.clock.advance(1)
    await stage.job("second")
    await stage.beat()
    yield "second", "It is queued behind 1 job in queue 'default'; 1 worker can run it, with 4 free slots."


@situations.add
async def next_while_all_slots_are_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("runs")
    await stage.claim()
    await stage.job()
    await stage.beat(slots=1, running=1)
    yield (
        "a",
        "It is next in its queue; all slots of the only worker that can run it are taken: t runs has run longest, "
        "on w1 "
        f"since {START}; `treadle worker --queues default` adds slots.",
    )
    await stage.beat("w2", slots=0)
    yield (
        "a",
        "It is next in its queue; all slots of the 2 workers that can run it are taken: t runs has run longest, on "
        "w1 "
        f"since {START}; `treadle worker --queues default` adds slots.",
    )


@situations.add
async def behind_others_while_all_slots_are_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("runs")
    await stage.claim()
    await stage.job("first")
    stage.clock.advance(2)
    await stage.job("second")
    await stage.beat(slots=1, running=1)
    yield (
        "second",
        "It is queued behind 1 job in queue 'default'; all slots of the only worker are taken: t runs has run "
        "longest, "
        f"on w1 since {START}; `treadle worker --queues default` adds slots.",
    )


@situations.add
async def jobs_of_a_higher_priority_are_ahead(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("low")
    await stage.job("high", priority=7)
    await stage.beat()
    yield (
        "low",
        "It is queued behind 1 job in queue 'default' (the first has priority 7, it has 0); 1 worker can run it, "
        "with 4 "
        "free slots.",
    )


@situations.add
async def lanes_take_turns(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("a1", lane="a")
    await stage.job("a2", lane="a")
    await stage.beat()
    yield (
        "a2",
        "It is queued behind 1 job in queue 'default' (lanes take turns; its lane is 'a'); 1 worker can run it, "
        "with 4 "
        "free slots.",
    )


@situations.add
async def a_job_that_ages(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("first", aging=60, priority=2)
    await stage.job("second", aging=60, priority=1)
    await stage.beat()
    yield (
        "second",
        "It is queued behind 1 job in queue 'default' (each 60 s of waiting count as one step of priority; its own "
        "is 1); "
        "1 worker can run it, with 4 free slots.",
    )


@situations.add
async def every_worker_is_silent(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    stage.clock.advance(45)
    await stage.job()
    yield (
        "a",
        "It is queued, but the last heartbeat of the only worker that can run it came 45 s ago (w1): if it was "
        "killed or "
        "its machine has stopped, start another one: `treadle worker --queues default`.",
    )
    await stage.beat("w2")
    stage.clock.advance(20)
    yield (
        "a",
        "It is queued, but the last heartbeat of the 2 workers that can run it came 20 s ago (w2): if it was "
        "killed or "
        f"its machine has stopped, start another one: `treadle worker --queues default`. It has waited since "
        f"{stage.at(45)}.",
    )


@situations.add
async def a_throttle_pauses_the_workers(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.beat(paused=600.0)
    yield (
        "a",
        f"It is queued, but worker 'w1' may claim nothing because of a throttle, until {stage.at(600)}, in 600 s.",
    )
    await stage.beat("w2", paused=300.0)
    yield (
        "a",
        "It is queued, but all 2 workers that can run it may claim nothing because of a throttle, until "
        f"{stage.at(300)}, in 300 s.",
    )


@situations.add
async def a_worker_lost_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim(lease=5)
    stage.clock.advance(6)
    await stage.beat("w2")
    yield (
        "a",
        f"It is next in its queue again, after worker 'w1' lost it; {CALM} It is a suspect, because worker 'w1' was "
        "lost, and will be tried alone.",
    )


@situations.add
async def a_worker_declined_it(stage: Stage) -> AsyncIterator[Sentence]:
    async with work(stage.app, name="w1", poll=60, accept=lambda row: False):
        await stage.job()
        await stage.until("a", "declined")
        yield (
            "a",
            f"It is not queued yet: worker 'w1' declined it (accept=), and it is offered again at {stage.at(60)}, "
            "in 60 "
            "s; `treadle jobs run-now a` queues it at once.",
        )


@situations.add
async def a_worker_could_not_read_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    [row] = await stage.claim("a")
    failed = Outcome(id="a", version=row.version, state=State.FAILED, attempt=1, error="BadArgument: x")
    await stage.storage.settle([left_to_others(row, failed, "w1", stage.clock() + 600)])
    await stage.beat()
    yield (
        "a",
        "It is queued, but worker w1 could not read its arguments and released it, uncounted: it waits for a "
        "worker with "
        f"another version of task 't' until {stage.at(600)}; then it fails; `treadle worker --queues default` with "
        "that "
        "code runs it.",
    )


@situations.add
async def another_version_of_its_code_runs(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    [row] = await stage.claim("a")
    failed = Outcome(id="a", version=row.version, state=State.FAILED, attempt=1, error="BadArgument: x")
    await stage.storage.settle([left_to_others(row, failed, "w1", stage.clock() + 600)])
    await stage.beat(versions=("old",))
    await stage.beat("w2", versions=("old",))
    yield (
        "a",
        "It is queued, but worker w1 could not read its arguments and released it, uncounted: it waits for a "
        f"worker with another version of task 't' until {stage.at(600)}; then it fails; `treadle worker --queues "
        "default` with that code runs it.",
    )
    await stage.beat("w3", versions=("new",))
    yield "a", f"It is next in its queue again, after worker 'w1' could not read its arguments; {CALM}"


@situations.add
async def its_own_parent_holds_the_slot(stage: Stage) -> AsyncIterator[Sentence]:
    gate = Gate()

    @stage.app.task(name="parent")
    async def parent() -> None:
        await stage.task.options(queue="default").enqueue()
        await gate()

    await stage.job("p", parent)
    async with work(stage.app, concurrency=1, name="w1"):
        await gate.began.wait()
        [child] = (await stage.app.jobs.list(task="t")).records
        await stage.until(child.id, "parent")
        yield (
            child.id,
            "It is next in its queue; all slots of the only worker that can run it are taken, one of them by its own "
            "parent, parent p: if that run waits for it, neither can continue (use `after=`, which takes no slot, "
            "or give "
            "the limit more slots).",
        )
        gate.go.set()


@situations.add
async def due_but_no_claim_has_come(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(delay=60)
    stage.clock.advance(70)
    yield (
        "a",
        f"It has been due since {stage.at(60)}, and the next claim queues it. It is queued, and no worker serves its "
        "queue 'default': `treadle worker --queues default` starts one.",
    )


@situations.add
async def a_deadline_is_near(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(expires=30)
    await stage.beat()
    yield (
        "a",
        f"It is next in its queue; {CALM} It fails at {stage.at(30)}, in 30 s, unless it has ended by then.",
    )


@situations.add
async def a_job_of_the_system_queue(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.storage.enqueue([NewJob(id="own", task="own", queue="treadle")])
    yield "own", "It is next in its queue; a worker of 'treadle' will claim it shortly."
