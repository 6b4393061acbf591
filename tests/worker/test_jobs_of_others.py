"""One process of a fleet acts for another one: it renews its leases while it is stuck, and ends them after its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from treadle import App
from treadle.core.model import Claim, HeartbeatResult, LeaseRenewal, Presence, Record, State
from treadle.policy.attempts import DEATH, deaths
from treadle.policy.guilt import is_suspect
from treadle.testing import HandClock
from treadle.worker import jobs_of_others
from treadle.worker.jobs_of_others import Death, JobsOfOthers, Place, named
from treadle_testkit.shows import shows

LEASE = 30.0


def helper(app: App) -> JobsOfOthers:
    async def beat(renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        return await app.storage.heartbeat(Presence(worker="helper"), renewals, lease)

    return JobsOfOthers(app.storage, app._core.tasks, beat, LEASE)


async def claimed(app: App, worker: str, count: int = 1) -> Sequence[Record]:
    """Jobs that this worker has claimed, each from a claim of its own."""
    task = app.tasks.get("f") or app.task(name="f")(f)
    await app.enqueue([task.job() for _ in range(count)])
    return [(await app.storage.claim(Claim(worker=f"{worker}#{n}", lease=LEASE))).records[0] for n in range(count)]


def f() -> None: ...


def death(worker: str, **options: object) -> Death:
    return msgspec.convert({"worker": worker, "how": "was killed by SIGKILL", "at": 5.0} | options, Death)


@shows("the jobs of a worker process that has died are queued at once, with the way it died, not after their leases")
async def test_the_jobs_of_a_dead_process_are_queued_at_once(app: App, clock: HandClock) -> None:
    ours, [other] = await claimed(app, "dead", 3), await claimed(app, "dead-too")
    gone = await helper(app).end(death("dead"))
    assert sorted(place.id for place in gone) == sorted(row.job.id for row in ours)
    assert [place.function for place in gone] == ["f"] * 3
    clock.advance(0.001)
    back = (await app.storage.claim(Claim(worker="next#1", limit=9))).records
    assert sorted(row.job.id for row in back) == sorted(row.job.id for row in ours)
    for row in back:
        [died] = deaths(row)
        assert (row.lost, died.worker, died.error, died.ended_at) == (1, "dead", "was killed by SIGKILL", 5.0)
        assert is_suspect(row)
    [row] = await app.storage.get([other.job.id])
    assert row is not None
    assert (row.state, row.due_at) == (State.RUNNING, other.due_at)


@pytest.mark.parametrize("count", [0, 1])
async def test_a_dead_process_is_listed_no_longer(app: App, count: int) -> None:
    await claimed(app, "dead", count)
    for name in ("dead", "alive"):
        await app.storage.heartbeat(Presence(worker=name, slots=1), [], LEASE)
    await helper(app).end(death("dead"))
    names = {worker.worker for worker in (await app.queues.glance()).workers}
    assert ("dead" in names, "alive" in names) == (False, True)


async def test_jobs_left_by_a_deliberate_stop_are_no_suspects(app: App, clock: HandClock) -> None:
    await claimed(app, "stopped")
    assert len(await helper(app).end(death("stopped", asked=True))) == 1
    clock.advance(0.001)
    [row] = (await app.storage.claim(Claim(worker="next#1"))).records
    assert row.lost == 1
    assert not is_suspect(row)
    assert DEATH not in dict(row.checkpoints)


async def test_a_job_that_another_process_runs_keeps_its_lease(app: App) -> None:
    """A trial process runs a suspect under the name of the worker that has claimed it."""
    [moved, kept] = await claimed(app, "holder", 2)
    assert [each.id for each in await helper(app).end(death("holder", but=[moved.job.id]))] == [kept.job.id]
    leases = [[moved.job.id, moved.version], [kept.job.id, kept.version + 1], ["unknown", 1]]
    assert [each.id for each in await helper(app).end(death("trial", jobs=leases))] == [moved.job.id]


async def test_the_leases_of_a_stuck_process_are_renewed_for_as_long_as_those_of_its_jobs(
    app: App, clock: HandClock
) -> None:
    @app.task(name="slow", lease=100)
    def slow() -> None: ...

    await slow.enqueue()
    [long] = (await app.storage.claim(Claim(worker="stuck#9", lease=LEASE))).records
    [plain], [moved] = await claimed(app, "stuck"), await claimed(app, "holder")
    clock.advance(20)
    jobs = await helper(app).renew("stuck", [(moved.job.id, moved.version)])
    assert sorted(each.id for each in jobs) == sorted(row.job.id for row in (long, plain, moved))
    rows = await app.storage.get([long.job.id, plain.job.id, moved.job.id])
    assert [row and row.due_at for row in rows] == [clock() + 100, clock() + LEASE, clock() + LEASE]


async def test_more_jobs_than_one_page(app: App, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = await claimed(app, "dead", 5)
    monkeypatch.setattr(jobs_of_others, "PAGE", 2)
    assert len(await helper(app).renew("dead", ())) == 5
    assert len(await helper(app).end(death("dead"))) == 5
    clock.advance(0.001)
    back = (await app.storage.claim(Claim(worker="next#1", limit=9))).records
    assert {row.job.id for row in back} == {row.job.id for row in rows}


def test_a_line_names_the_first_jobs() -> None:
    places = [Place(f"{n}", "t") for n in range(7)]
    assert named(places) == "t 0, t 1, t 2, t 3, t 4 and 2 more"
    assert named(places[:2]) == "t 0, t 1"
