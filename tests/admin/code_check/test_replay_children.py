"""Histories of functions with children, signals and sleeps: the same code follows them, and changed code does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from treadle import App, Job, JobNotDone, Retry, StepMismatch, UnknownJob, all_done, current, gather
from treadle.admin.histories import History, histories, line, read
from treadle.testing import HandClock, drain, replay
from treadle_testkit.shows import shows

RAN: list[str] = []
Function = Callable[..., Awaitable[Any]]


def children_of(app: App) -> None:
    """The tasks that the durable functions below make jobs of."""

    @app.task(name="resize")
    async def resize(picture: str) -> str:
        return f"small {picture}"

    @app.task(name="fails", retry=Retry(attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    @app.task(name="nothing")
    async def nothing() -> None: ...


async def start(picture: str) -> str:
    RAN.append(picture)
    job: Job[Any, Any] = await current_app().tasks["resize"].enqueue(picture)
    return job.id


APPS: list[App] = []


def current_app() -> App:
    return APPS[-1]


async def album(name: str) -> str:
    """Children, a signal, a sleep, and children again."""
    here = current()
    for number in range(2):
        await here.step("resize", start, f"{name}-{number}")
    await here.wait_for("approved", returns=str)
    await here.sleep(3600, name="cool-down")
    try:
        await here.wait_for("paid", timeout=60)
    except TimeoutError:
        await here.step("remind", RAN.append, "remind")
    await here.wait_for("paid")
    await here.step("ship", start, "parcel")
    return name


@pytest.fixture(autouse=True)
def _clear() -> None:
    RAN.clear()
    APPS.clear()


def next_version(function: Function) -> App:
    """The app of the next deploy, whose storage must not be opened."""
    app = App("memory://")
    app.task(name="album")(function)
    children_of(app)
    APPS.append(app)
    return app


async def exported(app: App, **filters: Any) -> list[History]:
    """The histories that `treadle jobs export` writes, read again."""
    found = [line(each, None) async for each in histories(app._core, filters)]
    return read(found)


async def recorded(app: App, clock: HandClock) -> dict[str, list[History]]:
    """The histories of one job, by where it was when they were exported."""
    app.task(name="album")(album)
    children_of(app)
    APPS.append(app)
    job = await app.tasks["album"].enqueue("rome")
    found = {}
    await drain(app)
    found["waits"] = await exported(app, task="album")
    await app.jobs.signal(job.id, "approved", "yes")
    await drain(app)
    found["sleeps"] = await exported(app, task="album")
    clock.advance(3600)
    await drain(app)
    found["waits again"] = await exported(app, task="album")
    clock.advance(61)
    await drain(app)
    found["was late"] = await exported(app, task="album")
    await app.jobs.signal(job.id, "paid", 1)
    await drain(app)
    assert await job.result(0) == "rome"
    found["ended"] = await exported(app, task="album")
    RAN.clear()
    return found


STEPS = ("resize", "resize#2", "wait:approved", "sleep:cool-down", "wait:paid", "remind", "wait:paid#2", "ship")


@shows("`replay` follows histories with children, signals, timeouts and sleeps, wherever the job was exported")
async def test_the_same_code_follows_its_history_from_every_place(app: App, clock: HandClock) -> None:
    found = await recorded(app, clock)
    taken = {}
    for place, lines in found.items():
        [told] = await replay(next_version(album), lines)
        taken[place] = (told.stopped_at, len(told.taken), told.error)
        assert told.taken == STEPS[: len(told.taken)]
    assert taken == {
        "waits": ("wait:approved", 2, None),
        "sleeps": ("sleep:cool-down", 4, None),
        "waits again": ("wait:paid", 5, None),  # its end is recorded
        "was late": ("wait:paid#2", 6, None),
        "ended": (None, 8, None),
    }
    assert RAN == []


async def _child_renamed(name: str) -> None:
    await current().step("shrink", start, f"{name}-0")


async def _child_gone(name: str) -> None:
    await current().step("resize", start, f"{name}-0")
    await current().wait_for("approved", returns=str)


async def _one_child_more(name: str) -> None:
    for number in range(3):
        await current().step("resize", start, f"{name}-{number}")
    await current().wait_for("approved", returns=str)


async def _no_signal(name: str) -> None:
    for number in range(2):
        await current().step("resize", start, f"{name}-{number}")
    await current().sleep(3600, name="cool-down")


async def _signal_renamed(name: str) -> None:
    for number in range(2):
        await current().step("resize", start, f"{name}-{number}")
    await current().wait_for("accepted", returns=str)


async def _signal_ends_it(name: str) -> None:
    for number in range(2):
        await current().step("resize", start, f"{name}-{number}")
    await current().wait_for("approved", returns=str)


async def _no_sleep(name: str) -> None:
    await _signal_ends_it(name)
    await current().wait_for("paid", timeout=60)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (_child_renamed, r"takes step 'shrink' first, but the stored run took 'resize'"),
        (_child_gone, r"takes step 'wait:approved' after 'resize', but the stored run took"),
        (_one_child_more, r"takes step 'resize#3' after 'resize#2', but the stored run took 'wait:approved'"),
        (_no_signal, r"takes step 'sleep:cool-down' after 'resize#2', but"),
        (_signal_renamed, r"takes step 'wait:accepted' after 'resize#2', but the stored run took 'wait:approved'"),
        (_signal_ends_it, r"ends after 'wait:approved', but the stored run took 'sleep:cool-down'"),
        (_no_sleep, r"takes step 'wait:paid' after 'wait:approved', but"),
    ],
    ids=lambda each: getattr(each, "__name__", "").strip("_"),
)
async def test_a_change_of_each_kind_is_found(app: App, clock: HandClock, changed: Function, says: str) -> None:
    found = await recorded(app, clock)
    for place in ("was late", "ended"):
        with pytest.raises(StepMismatch, match=says):
            await replay(next_version(changed), found[place])
    assert RAN == []


# --- what a job got from the jobs that it waited for


async def _sums(name: str) -> None:
    """Its steps depend on what its children have returned."""
    for number, each in enumerate(await current().upstream()):
        kind = type(each).__name__ if isinstance(each, JobNotDone | UnknownJob) else repr(each)
        await current().step(f"{number} {kind}", RAN.append, name)
    await current().wait_for("go")


async def test_results_of_children_are_those_of_the_run(app: App) -> None:
    """Also those of children that failed, returned None, or are no longer stored."""
    app.task(name="album")(_sums)
    children_of(app)
    made = [app.tasks["resize"].options(id="one").job("a"), app.tasks["fails"].options(id="two").job()]
    made.append(app.tasks["nothing"].options(id="three").job())
    await app.enqueue(*made)
    await app.tasks["album"].options(after=["one", "two", "three"], when=all_done()).enqueue("rome")
    await drain(app)
    [history] = await exported(app, task="album")
    [told] = await replay(next_version(_sums), [history])
    assert told.taken == ("0 'small a'", "1 JobFailed", "2 None")
    assert told.stopped_at == "wait:go"
    with pytest.raises(StepMismatch, match="takes step '0 UnknownJob'"):
        await replay(next_version(_sums), [replace(history, upstream=history.upstream[1:])])


async def _listed(found: list[str | None], name: str) -> None:
    await current().step(f"{len(found)} of {name}", RAN.append, name)
    await current().wait_for("go")


async def test_results_of_none_stay_in_a_list_of_results(app: App) -> None:
    app.task(name="album")(_listed)
    children_of(app)
    parts = [app.tasks["nothing"].job(), app.tasks["resize"].job("a"), app.tasks["fails"].job()]
    await app.enqueue(gather(*parts, when=all_done()).into(app.tasks["album"], "rome"))
    await drain(app)
    [told] = await replay(next_version(_listed), await exported(app, task="album"))
    assert told.taken == ("2 of rome",)


async def _counted(name: str) -> None:
    await current().step(f"{len(await current().upstream())} of {name}", RAN.append, name)
    await current().wait_for("go")


async def test_a_history_of_children_hides_their_secrets(app: App) -> None:
    async def login() -> dict[str, str]:
        return {"password": "hunter2", "user": "me"}

    app.task(name="login")(login)
    app.task(name="album")(_counted)
    await app.enqueue(app.tasks["login"].options(id="one").job())
    await drain(app)
    await app.tasks["album"].options(after=["one"]).enqueue("rome")
    await drain(app)
    redactor = app._core.redactor
    found = [each async for each in histories(app._core, {"task": "album"}, None, redactor.row)]
    assert "hunter2" not in "".join(line(each, redactor.of(each.task)) for each in found)
