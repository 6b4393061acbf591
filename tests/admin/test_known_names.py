"""A mistyped name of a queue, limit, task or signal: the call succeeds, and a warning gives the nearest known name."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable

import pytest

from tests.kit import Told, work
from treadle import App, BadOption, Limit, UnknownSchedule, current
from treadle.admin.known_names import heard
from treadle.core.model import Presence


@pytest.fixture
async def shop(app: App) -> App:
    """A queue and a limit that code names, a queue that only a job names, and a rule."""

    @app.task(name="mail.send", queue="mail", limits=["smtp", "tenant:4"])
    async def send() -> None: ...

    await app.stub("fetch.page", queue="fetch").enqueue()
    await app.limits.set(Limit("site", slots=3))
    return app


WRONG: dict[str, tuple[Callable[[App], Awaitable[object]], str]] = {
    "queues.pause": (
        lambda app: app.queues.pause("fecth"),
        "nothing uses the queue 'fecth' yet; did you mean 'fetch'?",
    ),
    "queues.resume": (lambda app: app.queues.resume("mial"), "the queue 'mial' is not paused; did you mean 'mail'?"),
    "limits.pause": (lambda app: app.limits.pause("stmp"), "nothing uses the limit 'stmp' yet; did you mean 'smtp'?"),
    "limits.resume": (lambda app: app.limits.resume("stie"), "the limit 'stie' is not paused"),
    "limits.set": (lambda app: app.limits.set(Limit("stie")), "there is no limit 'stie'; did you mean 'site'?"),
    "cancel queue": (
        lambda app: app.jobs.cancel(queue="fecth"),
        "nothing uses the queue 'fecth' yet; did you mean 'fetch'?",
    ),
    "retry task": (
        lambda app: app.jobs.retry(task="fetch.pgae"),
        "nothing uses the task 'fetch.pgae' yet; did you mean 'fetch.page'?",
    ),
    "retry function": (
        lambda app: app.jobs.retry(task="pgae"),
        "nothing uses the task 'pgae' yet; did you mean 'fetch.page'?",
    ),
    "retry function without its module": (
        lambda app: app.jobs.retry(task="page"),
        "nothing uses the task 'page' yet; did you mean 'fetch.page'?",
    ),
}

RIGHT: dict[str, Callable[[App], Awaitable[object]]] = {
    "a queue with jobs": lambda app: app.queues.pause("fetch"),
    "a queue of a task": lambda app: app.queues.pause("mail"),
    "a limit of a task": lambda app: app.limits.pause("smtp"),
    "a partition of a rule": lambda app: app.limits.pause("site:one"),
    "a new rule for partitions in use": lambda app: app.limits.set(Limit("tenant", slots=1)),
    "a new rule": lambda app: app.limits.set(Limit("new", slots=1)),
    "no job in a queue that is used": lambda app: app.jobs.cancel(queue="mail"),
    "a task of code": lambda app: app.jobs.retry(task="mail.send"),
}


@pytest.mark.parametrize("call", WRONG)
async def test_a_mistyped_name_warns_a_person(shop: App, call: str) -> None:
    act, words = WRONG[call]
    await shop.queues.pause("mail")
    with heard() as collected:
        await act(shop)
    assert collected.words == [words]


@pytest.mark.parametrize("call", WRONG)
async def test_a_program_may_name_what_nothing_uses_yet(shop: App, call: str) -> None:
    """Its call is carried out without a warning."""
    await shop.queues.pause("mail")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await WRONG[call][0](shop)


@pytest.mark.parametrize("call", RIGHT)
async def test_a_name_that_is_used_does_not_warn(shop: App, call: str) -> None:
    with heard() as collected:
        await RIGHT[call](shop)
    assert collected.words == []


async def test_a_call_with_an_unknown_name_is_carried_out(shop: App) -> None:
    with heard() as collected:
        await shop.queues.pause("fecth")
    assert collected.words
    assert {use.key: use.rule.slots for use in await shop.limits.list()}["queue:fecth"] == 0
    await shop.queues.resume("fecth")


async def test_a_signal_of_another_name_than_the_job_waits_for(app: App, told: Told) -> None:
    @app.task(name="release")
    async def release() -> object:
        return await current().wait_for("approved")

    job = await release.enqueue()
    async with work(app):
        await told.until("waiting")
        with heard() as collected:
            await app.jobs.signal(job, "aproved", 1)
            await app.jobs.signal(job, "approved", 2)
        [warning] = collected.words
        assert warning.startswith(f"job {job.id} waits for the signal 'approved', not for 'aproved'; did you mean")
        assert await job.result(timeout=30) == 2


async def test_an_error_of_an_unknown_schedule_names_the_nearest(app: App) -> None:
    @app.task(name="report")
    async def report() -> None: ...

    await app.schedules.upsert("nightly", report.job(), cron="@daily")
    for act in (app.schedules.get, app.schedules.pause, app.schedules.delete, app.schedules.trigger):
        with pytest.raises(
            UnknownSchedule, match=r"no schedule 'nigthly' is stored; did you mean 'nightly'\?"
        ) as found:
            await act("nigthly")
        assert found.value.like == "nightly"
    with pytest.raises(UnknownSchedule) as found:
        await app.schedules.get("other")
    assert found.value.like is None
    with pytest.raises(BadOption, match=r"'nigthly' is not stored \(did you mean 'nightly'\?\)"):
        await app.schedules.upsert("nigthly", cron="@hourly")


async def test_a_task_that_was_declared_since_the_last_look_is_known(app: App) -> None:
    """As in programs that import their tasks late."""

    @app.task(name="shop.tasks.pays", queue="pays")
    async def pays() -> None: ...

    with heard():
        await app.jobs.names.warn_of_new([pays.job().new])

    @app.task(name="shop.tasks.pay", queue="pay")
    async def pay() -> None: ...

    with heard() as collected:
        await app.jobs.names.warn_of_new([pay.job().new])
    assert collected.words == []


async def test_a_task_of_a_worker_that_has_started_since_the_last_look_is_known(app: App) -> None:
    """The names are cached; before a warning they are read again."""
    await app.stub("jobs.until").enqueue()
    await app.storage.heartbeat(
        Presence(worker="alpha", host="box", pid=7, queues=("default",), tasks=("jobs.pid",), slots=1, ttl=60), [], 30
    )
    with heard() as collected:
        await app.jobs.names.warn_of_new([app.stub("jobs.pid").job().new])
        assert collected.words == []
        await app.jobs.names.warn_of_new([app.stub("jobs.pidd").job().new])
    assert collected.words == ["nothing uses the task 'jobs.pidd' yet; did you mean 'jobs.pid'?"]
