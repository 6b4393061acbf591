"""Schedules: one tick per occurrence, whichever worker dies and whatever is edited, on every storage."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.kit import Spy, Told, presences, work
from treadle import App, BadOption, JobSpec, Record, Retry, UnknownSchedule
from treadle.core.model import Claim, NewJob, Presence, State
from treadle.policy.cron import stamp
from treadle.scheduling import CatchUp
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


async def ticks(app: App, name: str) -> list[Record]:
    """The jobs of a schedule, oldest first."""
    own = [row async for row in app.jobs.iterate(label=f"schedule={name}")]
    return [row for row in own if row.job.queue != "treadle"]


async def pass_time(app: App, clock: HandClock, seconds: float, step: float) -> None:
    """Let time pass step by step, and run everything that is due at each step."""
    await drain(app)
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await drain(app)


def again(app: App, spy: Spy, clock: HandClock) -> App:
    """Another process with other code, on the same storage."""
    return App(storage=spy, clock=clock, random=lambda: 0.0)


async def test_every_minute_is_every_minute(app: App, clock: HandClock) -> None:
    ran = []

    @app.every(60)
    @app.task(name="beat", queue="beats")
    async def beat() -> None:
        ran.append(clock.moment)

    began = clock.moment
    await pass_time(app, clock, 300, 30)
    assert [at - began for at in ran] == [60, 120, 180, 240, 300]
    jobs = await ticks(app, "beat")
    assert len({row.job.id for row in jobs}) == 5
    assert all(row.job.id.startswith("cron:beat:") and row.job.queue == "beats" for row in jobs)
    assert dict(jobs[0].job.headers)["treadle-schedule"] == "beat"
    assert datetime.fromisoformat(dict(jobs[0].job.headers)["treadle-moment"]).timestamp() == began + 60


async def test_a_cron_line_with_arguments_and_two_schedules_of_one_task(app: App, clock: HandClock) -> None:
    seen = []

    @app.cron("0 3 * * *", tz="Europe/Paris", args=["all"], name="nightly")
    @app.cron("0 * * * *", kwargs={"which": "new"}, name="hourly")
    @app.task
    async def report(which: str) -> None:
        seen.append((which, datetime.fromtimestamp(clock.moment, UTC).isoformat()))

    clock.moment = datetime(2026, 7, 1, 0, 30, tzinfo=UTC).timestamp()
    await pass_time(app, clock, 3600, 900)
    assert seen == [("new", "2026-07-01T01:00:00+00:00"), ("all", "2026-07-01T01:00:00+00:00")] or sorted(seen) == [
        ("all", "2026-07-01T01:00:00+00:00"),
        ("new", "2026-07-01T01:00:00+00:00"),
    ]
    [hourly, nightly] = await app.schedules.list()
    assert (hourly.name, nightly.name) == ("hourly", "nightly")
    assert nightly.timing == "0 3 * * * (Europe/Paris)"
    assert nightly.next_at == datetime(2026, 7, 2, 1, tzinfo=UTC)


@shows("a function computes the next time of its schedule, and `None` stops it")
async def test_a_function_of_a_schedule_computes_its_next_time(app: App, clock: HandClock) -> None:
    ran = []

    @app.schedule(lambda now: now + timedelta(seconds=100) if len(ran) < 3 else None)
    def sweep() -> None:
        ran.append(clock.moment)

    began = clock.moment
    await pass_time(app, clock, 1000, 50)
    assert [at - began for at in ran][:3] == [100, 200, 300]
    assert len(ran) <= 4  # the function is called for the next time before the last job has run
    [found] = await app.schedules.list()
    assert (found.timing, found.next_at, found.paused) == ("a function", None, False)
    ran.clear()
    await app.schedules.resume(found.name)  # the function is called once more
    await pass_time(app, clock, 150, 50)
    assert ran


async def ticker_is_deferred(app: App, clock: HandClock) -> bool:
    rows = [row async for row in app.jobs.iterate(queue="treadle") if row.job.task.startswith("treadle.schedule:")]
    return bool(rows) and all(row.state is State.READY and (row.due_at or 0.0) > clock() for row in rows)


@shows("five workers make one job at each time of a schedule")
async def test_five_workers_make_one_tick_each_time(app: App, spy: Spy, clock: HandClock, told: Told) -> None:
    ran = []

    @app.every(10)
    @app.task(name="beat")
    async def beat() -> None:
        ran.append(clock.moment)

    workers = [work(app) for _ in range(5)]
    for worker in workers:
        await worker.start()
    assert len(await app.schedules.list()) == 1
    for n in range(1, 6):
        await spy.until(lambda: ticker_is_deferred(app, clock), "the ticker, deferred by the clock as it stands")
        clock.advance(10)
        await told.until("succeeded", n)
    for worker in workers:
        await worker.stop()
    assert len(ran) == 5
    assert len(await ticks(app, "beat")) == 5


@shows("a worker that dies while it ticks a schedule loses no job of it")
async def test_a_worker_that_dies_while_it_ticks_loses_no_tick(app: App, storage: Storage, clock: HandClock) -> None:
    ran = []

    @app.every(60)
    @app.task(name="beat")
    async def beat() -> None:
        ran.append(clock.moment)

    await drain(app)
    clock.advance(60)
    own = "treadle.schedule:beat"
    taken = await storage.claim(Claim(worker="dead#1", queues=(("treadle", 1),), tasks={own: (None, None)}))
    assert [row.job.task for row in taken.records] == [own]
    await drain(app)
    assert ran == []  # the worker that claimed the ticker has not settled it, and never will
    clock.advance(6)
    await drain(app)
    assert len(ran) == 1
    [job] = await ticks(app, "beat")
    assert job.created_at == clock.moment
    clock.advance(54)
    await drain(app)
    assert len(ran) == 2  # the next one comes at its own time


@shows("`catch_up=` makes one job, all jobs or no job for the missed times")
@pytest.mark.parametrize(("catch_up", "many"), [("one", 1), ("all", 10), ("skip", 0)])
async def test_catch_up_makes_one_job_all_jobs_or_none(app: App, clock: HandClock, catch_up: str, many: int) -> None:
    @app.every(3600, catch_up=catch_up)  # type: ignore[arg-type]
    @app.task(name="beat")
    async def beat() -> None: ...

    await drain(app)
    clock.advance(10.5 * 3600)
    await drain(app)
    assert len(await ticks(app, "beat")) == many
    clock.advance(1800)
    await drain(app)
    assert len(await ticks(app, "beat")) == many + 1


async def test_catching_up_a_week_of_seconds_is_bounded_in_each_settle(app: App, clock: HandClock, spy: Spy) -> None:
    @app.cron("* * * * * *", catch_up="all")
    @app.task(name="beat")
    async def beat() -> None: ...

    await drain(app)
    clock.advance(1_700.2)
    largest = 0
    settle = spy.inner.settle

    async def watched(outcomes):  # type: ignore[no-untyped-def]
        nonlocal largest
        largest = max([largest, *(len(out.followups) for out in outcomes)])
        return await settle(outcomes)

    spy.inner.settle = watched  # type: ignore[method-assign]
    await drain(app, concurrency=20)
    made = len(await ticks(app, "beat"))
    assert made in (1_700, 1_701)
    assert largest == 500


async def test_overlap_skip_waits_for_the_last_one_to_end(app: App, storage: Storage, clock: HandClock) -> None:
    @app.every(60, overlap="skip")
    @app.task(name="slow", queue="slow")
    async def slow() -> None: ...

    await pass_time(app, clock, 60, 60)
    [first] = await ticks(app, "slow")
    assert first.state is State.SUCCEEDED
    clock.advance(60)
    await drain(app, tasks=[])  # run all ticks, but none of their jobs
    await drain(app, tasks=["slow"])
    assert len(await ticks(app, "slow")) == 2

    await app.queues.pause("slow")
    for _ in range(3):
        clock.advance(60)
        await drain(app)
    assert len(await ticks(app, "slow")) == 3  # the first of the three is in a paused queue, the others were not made
    await app.queues.resume("slow")
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert [row.state for row in await ticks(app, "slow")] == [State.SUCCEEDED] * 4


@pytest.mark.parametrize(("catch_up", "wait"), [("one", 1), ("all", 8), ("skip", 0)])
@pytest.mark.parametrize("what", ["queue", "limit", "partition"])
@shows("a paused queue does not collect the ticks of its schedules")
async def test_a_pause_collects_at_most_one_tick(
    app: App, clock: HandClock, catch_up: CatchUp, wait: int, what: str
) -> None:
    """The night of a pause: one tick waits for its end, all of them only if the schedule asks for that."""

    @app.every(3600, catch_up=catch_up)
    @app.task(name="tidy", queue="tidying", limits=["disk:a" if what == "partition" else "disk"])
    async def tidy() -> None: ...

    async def unfinished() -> int:
        return sum(not row.state.final for row in await ticks(app, "tidy"))

    await pass_time(app, clock, 3600, 3600)
    assert len(await ticks(app, "tidy")) == 1
    pauses = app.queues if what == "queue" else app.limits
    name = "tidying" if what == "queue" else "disk"
    await pauses.pause(name)
    await pass_time(app, clock, 8 * 3600, 3600)
    assert await unfinished() == wait
    await pauses.resume(name)
    await drain(app)
    assert await unfinished() == 0
    await pass_time(app, clock, 3600, 3600)
    assert len(await ticks(app, "tidy")) == 2 + wait


async def test_a_tick_that_another_caller_has_stored_emits_an_event(
    app: App, storage: Storage, clock: HandClock, told: Told
) -> None:
    """A row of another queue has the id of the next tick, so the tick is lost, but an event reports it."""
    ran = []

    @app.every(60)
    @app.task(name="beat", queue="beats")
    async def beat() -> None:
        ran.append(clock.moment)

    await pass_time(app, clock, 60, 60)
    [tick] = await ticks(app, "beat")
    moment = datetime.fromisoformat(dict(tick.job.headers)["treadle-moment"]) + timedelta(seconds=60)
    forged = NewJob(id=f"cron:beat:{stamp(moment.timestamp())}", task="another", queue="mine")
    await storage.enqueue([forged])
    await pass_time(app, clock, 120, 60)
    assert len(ran) == 2  # the first one, and the one after the forged one
    assert forged.id in str(told.of("worker.error")[0].error)
    assert (await storage.get([forged.id]))[0] is not None


@shows("a schedule whose options raise keeps the error in its row and ticks at the next time")
async def test_a_schedule_whose_options_raise_ticks_again(app: App, clock: HandClock, told: Told) -> None:
    ran, wrong = [], [True]

    def options() -> dict[str, int]:
        if wrong[0]:
            raise RuntimeError("no options today")
        return {}

    @app.every(60)
    @app.task(name="beat", options=options)  # type: ignore[arg-type]
    async def beat() -> None:
        ran.append(1)

    await pass_time(app, clock, 120, 60)
    assert ran == []
    [found] = await app.schedules.list()
    assert "no options today" in (found.error or "")
    assert str(told.of("worker.error")[0].error) == "no options today"
    wrong[0] = False
    clock.advance(60)
    await drain(app)
    assert ran == [1]
    assert (await app.schedules.get("beat")).error is None


@shows("a schedule function that raises is called again")
async def test_a_schedule_function_that_raises_is_called_again(app: App, clock: HandClock) -> None:
    ran, wrong = [], [True]

    def ask(now: datetime) -> datetime:
        if wrong[0]:
            raise RuntimeError("not today")
        return now + timedelta(seconds=10)

    @app.schedule(ask)
    @app.task(name="beat")
    async def beat() -> None:
        ran.append(1)

    await pass_time(app, clock, 30, 10)
    assert "not today" in ((await app.schedules.get("beat")).error or "")
    wrong[0] = False
    await pass_time(app, clock, 60, 10)
    assert ran


async def test_a_schedule_is_paused_resumed_and_triggered(app: App, clock: HandClock) -> None:
    ran = []

    @app.every(60)
    @app.task(name="beat")
    async def beat() -> str:
        ran.append(clock.moment)
        return "done"

    await drain(app)
    await app.schedules.pause("beat")
    assert (await app.schedules.get("beat")).paused
    await pass_time(app, clock, 300, 60)
    assert ran == []
    job = await app.schedules.trigger("beat")
    await drain(app)
    assert await job.result(timeout=0) == "done"
    await app.schedules.resume("beat")
    await app.schedules.resume("beat")  # repeating it changes nothing
    assert not (await app.schedules.get("beat")).paused
    await drain(app)
    assert len(ran) == 1  # ticks of the pause are not made up for
    await pass_time(app, clock, 60, 60)
    assert len(ran) == 2
    for act in (app.schedules.pause, app.schedules.resume, app.schedules.delete, app.schedules.trigger):
        with pytest.raises(UnknownSchedule):
            await act("nobody")


async def test_a_worker_follows_changes_of_a_schedule(app: App, clock: HandClock) -> None:
    seen = []

    @app.task(name="report")
    async def report(tenant: int) -> None:
        seen.append(tenant)

    made = await app.schedules.upsert("tenant-1", report.options(priority=5).job(1), every=60)
    assert (made.name, made.timing, made.task) == ("tenant-1", "every 60 s", "report")
    await pass_time(app, clock, 120, 60)
    assert seen == [1, 1]
    assert all(row.job.priority == 5 for row in await ticks(app, "tenant-1"))
    await app.schedules.upsert("tenant-1", report.job(2))  # the job is another one, its times stay
    await pass_time(app, clock, 60, 60)
    assert seen == [1, 1, 2]
    changed = await app.schedules.upsert("tenant-1", every=10, overlap="skip")
    assert (changed.timing, changed.overlap) == ("every 10 s", "skip")
    await pass_time(app, clock, 30, 10)
    assert seen == [1, 1, 2, 2, 2, 2]
    await app.schedules.pause("tenant-1")
    await app.schedules.upsert("tenant-1", every=5)
    assert (await app.schedules.get("tenant-1")).paused  # an edit does not resume it
    await pass_time(app, clock, 30, 5)
    assert len(seen) == 6
    await app.schedules.delete("tenant-1")
    assert await app.schedules.list() == []
    await app.schedules.upsert("tenant-1", report.job(3), cron="@hourly")
    await pass_time(app, clock, 3600, 600)
    assert seen[6:] == [3]


async def test_a_deploy_stores_the_declared_schedule(app: App, spy: Spy, clock: HandClock) -> None:
    @app.every(60)
    @app.task(name="beat")
    async def beat() -> None: ...

    await drain(app)
    await app.schedules.pause("beat")
    next_code = again(app, spy, clock)

    @next_code.every(10, overlap="skip")
    @next_code.task(name="beat")
    async def beat_too() -> None: ...

    await drain(next_code)
    [found] = await next_code.schedules.list()
    assert (found.timing, found.overlap, found.paused) == ("every 10 s", "skip", True)  # an operator paused it
    await next_code.schedules.upsert("beat", every=30)
    await drain(next_code)  # the same code starts again: the edit stays
    assert (await next_code.schedules.get("beat")).timing == "every 30 s"
    with pytest.raises(BadOption, match="declared in code"):
        await next_code.schedules.upsert("beat", beat.job())
    await next_code.close()


async def test_a_pause_and_a_deploy_at_the_same_time_both_hold(app: App, spy: Spy, clock: HandClock) -> None:
    """Both changes are made from the same row: the second one is made again from the row that the first one left."""

    async def beat() -> None: ...

    app.every(60)(app.task(name="beat")(beat))
    await app.schedules.store()
    operator, deploy = again(app, spy, clock), again(app, spy, clock)
    deploy.every(120)(deploy.task(name="beat")(beat))
    await asyncio.gather(operator.schedules.pause("beat"), deploy.schedules.store())
    found = await app.schedules.get("beat")
    assert (found.paused, found.every) == (True, 120)
    await asyncio.gather(operator.schedules.resume("beat"), app.schedules.upsert("beat", catch_up="all"))
    found = await app.schedules.get("beat")
    assert (found.paused, found.catch_up) == (False, "all")


async def test_a_schedule_that_code_took_over_from_a_person(app: App, spy: Spy, clock: HandClock) -> None:
    @app.task(name="beat")
    async def beat() -> None: ...

    await app.schedules.upsert("beat", beat.job(), every=5)
    next_code = again(app, spy, clock)
    next_code.every(60)(
        next_code.task(lambda: None, name="beat") if False else next_code.task(name="beat")(beat.function)
    )
    await drain(next_code)
    [found] = await next_code.schedules.list()
    assert found.timing == "every 60 s"
    await next_code.close()


async def test_a_schedule_that_code_no_longer_declares_is_kept_without_ticks(
    app: App, spy: Spy, clock: HandClock
) -> None:
    @app.every(60)
    @app.task(name="gone")
    async def gone() -> None: ...

    await drain(app)
    next_code = again(app, spy, clock)
    await pass_time(next_code, clock, 600, 60)
    assert await ticks(next_code, "gone") == []
    [found] = await next_code.schedules.list()
    assert "no worker" in await next_code.jobs.explain(found.id) or "none of the" in await next_code.jobs.explain(
        found.id
    )
    with pytest.raises(BadOption, match="code makes the jobs"):
        await next_code.schedules.trigger("gone")
    await next_code.schedules.delete("gone")
    assert await next_code.schedules.list() == []
    await next_code.close()


async def test_a_worker_of_other_tasks_leaves_a_schedule_alone(app: App, clock: HandClock) -> None:
    @app.every(60)
    @app.task(name="beat")
    async def beat() -> None: ...

    @app.task(name="other")
    async def other() -> None: ...

    await drain(app, tasks=["other"])
    clock.advance(60)
    await drain(app, tasks=["other"])
    assert await ticks(app, "beat") == []
    await drain(app)
    assert len(await ticks(app, "beat")) == 1


async def test_a_tick_whose_key_is_held_is_answered_by_the_holder(app: App, clock: HandClock) -> None:
    from treadle import Key

    @app.every(60)
    @app.task(name="beat", queue="beats", key=Key("one", conflict="raise"))
    async def beat() -> None: ...

    await app.queues.pause("beats")
    await pass_time(app, clock, 300, 60)
    assert len(await ticks(app, "beat")) == 1
    await app.queues.resume("beats")
    await pass_time(app, clock, 60, 60)
    assert len(await ticks(app, "beat")) == 2


@shows("a worker makes few claims while all jobs are due in years", area="Queue order and claims")
async def test_jobs_due_in_years_cause_few_claims(app: App, clock: HandClock, spy: Spy) -> None:
    @app.task(name="later")
    async def later() -> None: ...

    await app.enqueue([later.options(delay=86_400.0 * 365 * years).job() for years in range(1, 51)])
    spy.calls.clear()
    assert await drain(app) == 0
    assert spy.calls["claim"] < 10
    clock.advance(86_400.0 * 365 + 1)
    assert await drain(app) == 1


async def test_an_invalid_schedule_raises_where_it_is_declared(app: App) -> None:
    @app.task(name="f")
    async def f(n: int) -> None: ...

    @app.task(name="ünder")
    async def under() -> None: ...

    for wrong in (
        lambda: app.cron("0 0 30 2 *"),
        lambda: app.cron("nonsense"),
        lambda: app.cron("@daily", tz="Mars/Olympus"),
        lambda: app.every(0),
        lambda: app.schedule(3),  # type: ignore[arg-type]
        lambda: app.every(5, args=[1], catch_up="some")(f),  # type: ignore[arg-type]
        lambda: app.every(5, args=[1], overlap="never")(f),  # type: ignore[arg-type]
        lambda: app.every(5)(under),
        lambda: app.every(5, args=[1], name="a b")(f),
    ):
        with pytest.raises(BadOption):
            wrong()
    with pytest.raises(TypeError, match="missing"):
        app.every(5)(f)
    app.every(5, args=[1])(f)
    with pytest.raises(BadOption, match="already"):
        app.every(6, args=[1])(f)
    spec: JobSpec[None] = f.job(1)
    for arguments in ({}, {"spec": spec}, {"every": 5}, {"spec": spec, "every": 5, "cron": "@daily"}):
        with pytest.raises(BadOption):
            await app.schedules.upsert("new", **arguments)  # type: ignore[arg-type]


async def test_a_test_app_runs_due_schedules(clock: HandClock) -> None:
    app = App("memory://")
    ran = []

    @app.cron("0 * * * *")
    async def hourly() -> None:
        ran.append(1)

    async with app.testing() as t:
        await t.drain()
        await t.advance(3 * 3600)
        assert len(ran) == 3
        assert len(t.enqueued(hourly)) == 3


async def test_a_worker_starts_although_its_schedules_cannot_be_stored_yet(app: App, spy: Spy) -> None:
    @app.every(60)
    @app.task(name="beat")
    async def beat() -> None: ...

    spy.away["enqueue"] = 2  # the ticker waits until the jobs can be stored
    async with work(app, recovery=Retry(base=0.01)):
        assert [each.name for each in await app.schedules.list()] == ["beat"]


async def test_presence_names_the_queues_of_users_only(app: App, spy: Spy) -> None:
    @app.task(name="f", queue="mine")
    async def f() -> None: ...

    async with work(app, name="w"):
        found = await spy.until(lambda: presences(spy), "the worker's first heartbeat")
        assert found[0].queues == ("mine",)


async def test_a_schedule_ticks_again_after_the_clock_was_ahead(app: App, spy: Spy, clock: HandClock) -> None:
    """It ticked a day ahead. After the first heartbeat with the right clock it ticks every minute again."""
    ran = []

    @app.every(60)
    @app.task(name="beat")
    async def beat() -> None:
        ran.append(clock.moment)

    await pass_time(app, clock, 60, 30)
    await spy.heartbeat(Presence(worker="w"), [], 30.0)
    clock.advance(86_400)
    await spy.heartbeat(Presence(worker="w"), [], 30.0)
    await pass_time(app, clock, 60, 30)
    clock.moment -= 86_400
    await spy.heartbeat(Presence(worker="w"), [], 30.0)
    ran.clear()
    await pass_time(app, clock, 300, 30)
    assert len(ran) in (4, 5), ran
