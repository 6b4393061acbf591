"""`app.jobs.eta` and `app.queues.plan` for tasks that require labels or use resources, and for other versions of a
task."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admin.test_estimate import beat, fill, measured, near
from treadle import App, Limit, State
from treadle.admin.estimate import Estimate
from treadle.core.model import Claim, NewJob, Outcome
from treadle.core.placement import Needs
from treadle.policy.misfits import left_to_others
from treadle.testing import HandClock
from treadle_testkit.shows import shows

GPU = Needs("t", (), (("gpu", 1),))
A100 = Needs("t", (("gpu", ("a100",)),))
LENGTH = 60.0  # s that each measured run took


@pytest.fixture
async def furnished(app: App, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app with the tasks `t`, `small` and `large`, and no worker. Its estimates are of six virtual runs."""
    monkeypatch.setattr("treadle.admin.estimate.forecast.MOST", 6)
    monkeypatch.setattr("treadle.admin.estimate.forecast.TRIES", 3)
    for name in ("t", "small", "large"):

        @app.task(name=name)
        async def run() -> None: ...

    await app.open()
    await app.storage.store_metrics([measured(clock, t=LENGTH, small=2.0, large=LENGTH)])
    return app


def waits(said: Estimate, clock: HandClock) -> float:
    assert said.start is not None
    return said.start.median - clock()


async def misfit(app: App, clock: HandClock, id: str, seconds: float = 600) -> None:
    """Let worker w1 leave this job to another version of its task."""
    [row] = (await app.storage.claim(Claim(worker="w1#1", ids=(id,), lease=60))).records
    failed = Outcome(id=id, version=row.version, state=State.FAILED, attempt=1, error="BadArgument: x")
    await app.storage.settle([left_to_others(row, failed, "w1", clock() + seconds)])


# --- resources


@shows("`app.jobs.eta` counts the resources of the workers, as their claims do")
async def test_jobs_that_share_one_resource(furnished: App, clock: HandClock) -> None:
    first, *_, last = await fill(furnished, 10)
    await furnished.storage.claim(Claim(worker="w1#1", ids=(first,), lease=600))
    await beat(furnished, slots=20, needs=(GPU,), resources=(("gpu", 1, 1),))
    said = await furnished.jobs.eta(last)
    assert "has 0 of 1 free" in (await furnished.jobs.explain("j0001"))
    assert near(waits(said, clock), 9 * LENGTH)
    two, one = said.changes
    assert one.what == "1 more worker with 20 slots (1 gpu)"
    assert one.command == "treadle worker --queues default --concurrency 20 --resource gpu=1"
    assert one.when is not None
    assert near(one.when.median - clock(), 4 * LENGTH, 0.3)
    assert two.what == "2 more workers with 20 slots each (1 gpu)"
    plan = await furnished.queues.plan("default")
    assert plan.bottleneck == "the resource 'gpu' of its workers"
    assert plan.empty is not None
    assert near(plan.empty.median - clock(), 9 * LENGTH)


@shows("`app.jobs.eta` knows that a worker keeps resources free for a large job")
async def test_a_large_job_gets_its_turn(furnished: App, clock: HandClock) -> None:
    """Without its turn it would wait until all small ones have started. With it, what runs at the turn ends first."""
    needs = (Needs("small", (), (("mb", 4),)), Needs("large", (), (("mb", 16),)))
    place: dict[str, Any] = {"tasks": ("small", "large"), "needs": needs, "slots": 20}
    small = [furnished.tasks["small"].options(id=f"s{at:03}").job() for at in range(200)]
    await furnished.enqueue([furnished.tasks["large"].options(id="big").job(), *small])
    await furnished.storage.claim(Claim(worker="w1#1", ids=("s000", "s001", "s002"), lease=600))
    await beat(furnished, **place, resources=(("mb", 16, 12),))
    said = await furnished.jobs.eta("big")
    assert 5 < waits(said, clock) < 11
    await beat(furnished, **place, resources=(("mb", 16, 12),), reserved="large")
    said = await furnished.jobs.eta("big")
    assert waits(said, clock) < 5
    assert waits(await furnished.jobs.eta("s003"), clock) > LENGTH, "the worker keeps room for the large one"


async def test_a_job_that_uses_nothing_passes(furnished: App, clock: HandClock) -> None:
    await fill(furnished, 5)
    job = await furnished.tasks["small"].enqueue()
    await beat(furnished, slots=2, tasks=("t", "small"), needs=(GPU,), resources=(("gpu", 1, 0),))
    assert waits(await furnished.jobs.eta(job), clock) < 1


async def test_jobs_of_other_queues_use_resources_too(furnished: App, clock: HandClock) -> None:
    """A caller that may see one queue only does not see the job that uses the resource."""
    [job] = await fill(furnished, 1)
    other = await furnished.tasks["t"].options(queue="other").enqueue()
    await furnished.storage.claim(Claim(worker="w1#1", ids=(other.id,), lease=600))
    await beat(furnished, slots=9, queues=("default", "other"), needs=(GPU,), resources=(("gpu", 1, 1),))
    said = await furnished.jobs.within(("default",)).eta(job)
    assert near(waits(said, clock), LENGTH)
    assert any("jobs of other queues" in each for each in said.assumptions)


# --- labels


@shows("`app.jobs.eta` says that no worker can run a job, and names the options of one that can")
async def test_no_worker_has_the_label(furnished: App, clock: HandClock) -> None:
    [job] = await fill(furnished, 1)
    await beat(furnished, slots=20, tasks=("small",), needs=(A100,))
    said = await furnished.jobs.eta(job)
    assert said.start is None
    [change] = said.changes
    assert change.command == "treadle worker --queues default --concurrency 20 --label gpu=a100"
    assert change.what == "1 more worker with 20 slots (gpu=a100)"
    assert change.when is not None
    assert near(change.when.median - clock(), 0)
    plan = await furnished.queues.plan("default")
    assert (plan.workers, plan.empty) == (0, None)
    assert plan.bottleneck == "a worker for task 't': no running worker has label gpu=a100"
    assert [each.command for each in plan.changes] == [change.command]


async def test_no_worker_is_large_enough(furnished: App, clock: HandClock) -> None:
    needs = Needs("t", (("site", ()),), (("mb", 16),))
    [job] = await fill(furnished, 1)
    await beat(furnished, slots=4, tasks=(), needs=(needs,), labels=(("site", "eu"),), resources=(("mb", 8, 0),))
    [change] = (await furnished.jobs.eta(job)).changes
    assert change.command == "treadle worker --queues default --concurrency 4 --label site=eu --resource mb=16"
    plan = await furnished.queues.plan("default")
    assert plan.bottleneck == "a worker for task 't': it needs 16 mb; the largest worker has 8"


async def test_a_worker_of_another_queue_is_the_model(furnished: App, clock: HandClock) -> None:
    [job] = await fill(furnished, 1)
    await beat(furnished, slots=3, queues=("other",), needs=(A100,), labels=(("gpu", "a100"),))
    said = await furnished.jobs.eta(job)
    assert said.start is None
    assert [each.command for each in said.changes] == [
        "treadle worker --queues default --concurrency 3 --label gpu=a100"
    ]
    assert (await furnished.queues.plan("default")).bottleneck == "a worker: none serves it"


@shows("`app.queues.plan` answers for a queue whose tasks have different needs")
async def test_tasks_of_different_needs(furnished: App, clock: HandClock) -> None:
    needs = (A100, Needs("small", (), (("mb", 4),)))
    await fill(furnished, 2)
    await furnished.enqueue(furnished.tasks["small"].job() for _ in range(20))
    await beat(furnished, slots=20, tasks=("small",), needs=needs, resources=(("mb", 8, 0),))
    plan = await furnished.queues.plan("default")
    assert (plan.workers, plan.slots, plan.empty) == (1, 20, None)
    assert plan.bottleneck == "a worker for task 't': no running worker has label gpu=a100"
    command = "treadle worker --queues default --concurrency 20 --label gpu=a100 --resource mb=8"
    assert {each.command for each in plan.changes} == {command}
    await beat(furnished, "w2", slots=1, tasks=("t", "small"), needs=needs, labels=(("gpu", "a100"),))
    plan = await furnished.queues.plan("default")
    assert plan.workers == 2
    assert plan.empty is not None
    assert near(plan.empty.median - clock(), LENGTH)


# --- other versions of the code


@shows("`app.jobs.eta` starts a job on no worker whose code could not read it")
async def test_a_job_that_waits_for_another_version(furnished: App, clock: HandClock) -> None:
    [job, behind] = await fill(furnished, 2)
    await beat(furnished, versions=("old",))
    await beat(furnished, "w2", versions=("old",))
    await misfit(furnished, clock, job)
    said = await furnished.jobs.eta(job)
    assert (said.start, said.changes) == (None, ())
    assert "another version" in said.explanation
    assert waits(await furnished.jobs.eta(behind), clock) < 1
    plan = await furnished.queues.plan("default")
    assert plan.empty is not None
    assert near(plan.empty.median - clock(), 600), "then it fails"
    assert plan.bottleneck == "a worker with another version of task 't'"
    await beat(furnished, "w3", versions=("new",))
    assert waits(await furnished.jobs.eta(job), clock) < 1
    await furnished.storage.claim(Claim(worker="w3#1", ids=(behind,), lease=600))
    said = await furnished.jobs.eta(job)
    assert near(waits(said, clock), LENGTH), "the only worker that can read it is busy"
    assert "1 more worker with 1 slot" in [each.what for each in said.changes]


async def test_a_misfit_whose_worker_has_left(furnished: App, clock: HandClock) -> None:
    [job] = await fill(furnished, 1)
    await misfit(furnished, clock, job)
    await beat(furnished, "w2", versions=("new",))
    said = await furnished.jobs.eta(job)
    assert waits(said, clock) < 1
    assert any("'w1' could not read" in each for each in said.assumptions)


# --- limits and other bottlenecks


async def test_the_bottlenecks_exist(furnished: App, clock: HandClock) -> None:
    """Each names a rule that is stored, or the workers."""
    await fill(furnished, 12)
    await beat(furnished, slots=8)
    plans = furnished.queues.plan

    async def bottleneck() -> str | None:
        return (await plans("default")).bottleneck

    assert await bottleneck() == "the slots of its workers"
    await furnished.limits.set(Limit("queue", slots=2))
    plan = await plans("default")
    assert plan.bottleneck == "the limit 'queue'"
    assert [each.command for each in plan.changes] == ["treadle limits set queue --slots 4"]
    await furnished.limits.pause("queue")
    plan = await plans("default")
    assert (plan.bottleneck, plan.empty) == ("the limit 'queue', which is paused", None)
    assert [each.command for each in plan.changes] == ["treadle limits resume queue"]
    await furnished.limits.set(Limit("queue:default", rate=1, per=30))
    assert await bottleneck() == "the limit 'queue:default'"
    await furnished.queues.pause("default")
    assert await bottleneck() == "the limit 'queue:default', which is paused"


async def test_the_blocked_jobs_of_another_queue_are_no_bottleneck(furnished: App, clock: HandClock) -> None:
    await furnished.limits.set(Limit("api", slots=1))
    await fill(furnished, 4)
    await furnished.enqueue(furnished.tasks["t"].options(queue="other", limits=["api"]).job() for _ in range(50))
    await beat(furnished, queues=("default", "other"), slots=2)
    plan = await furnished.queues.plan("default")
    assert plan.bottleneck == "the slots of its workers"


async def test_a_throttle_and_workers_that_are_replaced(furnished: App, clock: HandClock) -> None:
    await fill(furnished, 4)
    await beat(furnished, slots=8, paused=60.0)
    plan = await furnished.queues.plan("default")
    assert (plan.workers, plan.bottleneck) == (0, "its workers, which a throttle pauses")
    await beat(furnished, slots=8, draining="age")
    assert (await furnished.queues.plan("default")).bottleneck == "a worker: none serves it"


@shows("a change of a bounded queue's rule that an estimate tries out cancels no job")
async def test_a_bounded_queue(furnished: App, clock: HandClock) -> None:
    await beat(furnished, slots=8)
    first, *_, last = await fill(furnished, 9)
    await furnished.limits.set(Limit("queue:default", slots=1, max_waiting=3, when_full="drop_oldest"))
    said = await furnished.jobs.eta(last)
    assert near(waits(said, clock), 8 * LENGTH)
    [change] = said.changes
    assert change.when is not None
    assert near(change.when.median - clock(), 4 * LENGTH)
    assert change.command == "treadle limits set queue:default --slots 2 --max-waiting 3 --when-full drop_oldest"
    assert waits(await furnished.jobs.eta(first), clock) < 1


async def test_a_paused_queue_in_which_jobs_arrive(furnished: App, clock: HandClock) -> None:
    """The run ends although a job arrives ten times a second for seven days."""
    await furnished.queues.pause("default")
    for number in range(24):
        clock.advance(10)
        await furnished.storage.enqueue([NewJob(id=f"n{number}-{each}", task="t") for each in range(100)])
    await beat(furnished, slots=8)
    said = await furnished.jobs.eta("n0-0")
    assert said.start is None
    assert [each.command for each in said.changes] == ["treadle queues resume default"]


async def test_the_utilisation_of_a_resource(furnished: App, clock: HandClock) -> None:
    """A job a minute of one minute each keeps two of four GPUs busy all the time, and one of 20 slots."""
    needs = (Needs("t", (), (("gpu", 2),)),)
    for number in range(6):
        clock.advance(60)
        await furnished.storage.enqueue([NewJob(id=f"n{number}", task="t", keep=3600)])
        [row] = (await furnished.storage.claim(Claim(worker="w1#1"))).records
        done = Outcome(id=row.job.id, version=row.version, state=State.SUCCEEDED, attempt=1)
        await furnished.storage.settle([done])
    await beat(furnished, slots=20, needs=needs, resources=(("gpu", 4, 0),))
    plan = await furnished.queues.plan("default")
    assert plan.utilisation is not None
    assert near(plan.utilisation, 0.5, 0.15)
