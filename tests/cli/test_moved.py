"""The command line at the old storage after a move: acts are refused, and reads warn about old rows."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.storage.moving_kit import url_of
from treadle import App, Job, JobCancelled, Limit, OldRows, StorageMoved
from treadle.admin import moved_looks
from treadle.admin.storage_move import OpenStorage, move
from treadle.cli.root import run as treadle
from treadle.server import Serving, Settings, make_site
from treadle.storage import connect

KINDS = ("sqlite", "redis", "postgres")
NEW = "sqlite:///the-new-one.db"


async def left(kind: str, folder: Path, url: str | None = None) -> str:
    """The URL of a storage whose jobs were moved: one that is ready, one that was cancelled, and a schedule."""
    url = url or url_of(kind, folder)
    async with App(url) as app:
        await app.enqueue(app.stub("t").options(id="ready").job(), app.stub("t").options(id="done").job())
        await app.jobs.cancel("done")
        await app.schedules.upsert("daily", app.stub("t").job(), every=86_400)
    old, new = connect(url), connect(f"sqlite:///{folder}/new.db")
    await old.open()
    await new.open()
    try:
        await move(OpenStorage(old, "the old one"), OpenStorage(new, NEW), wait=0)
    finally:
        await old.close()
        await new.close()
    return url


@asynccontextmanager
async def seen_from(way: str, url: str) -> AsyncIterator[App]:
    if way == "python":
        async with App(url) as app:
            yield app
        return
    async with Serving(make_site(App(url), Settings())) as serving, App(serving.url) as app:
        yield app


ACTS: dict[str, list[Callable[[App], Awaitable[Any]]]] = {
    "enqueue": [lambda app: app.stub("t").enqueue()],
    "jobs.cancel": [
        lambda app: app.jobs.cancel("ready"),
        lambda app: app.jobs.cancel("done"),
        lambda app: app.jobs.cancel(task="t"),
        lambda app: app.jobs.cancel(task="no.such"),
    ],
    "jobs.retry": [lambda app: app.jobs.retry("done"), lambda app: app.jobs.retry(task="t", state="cancelled")],
    "jobs.run_now": [lambda app: app.jobs.run_now("ready"), lambda app: app.jobs.run_now(task="no.such")],
    "jobs.delete": [lambda app: app.jobs.delete("done"), lambda app: app.jobs.delete(task="t")],
    "jobs.signal": [lambda app: app.jobs.signal("ready", "go"), lambda app: app.jobs.signal("done", "go")],
    "jobs.send": [lambda app: app.jobs.send("ready", "add", 1)],
    "jobs.ask": [lambda app: app.jobs.ask("ready", "add", 1, timeout=1)],
    "jobs.decide": [lambda app: app.jobs.decide("treadle:approval:new", approved=True)],
    "jobs.pause": [lambda app: app.jobs.pause("ready"), lambda app: app.jobs.pause(task="t")],
    "jobs.resume": [lambda app: app.jobs.resume("ready"), lambda app: app.jobs.resume(task="t")],
    "jobs.rerun": [lambda app: app.jobs.rerun("done")],
    "jobs.fork": [lambda app: app.jobs.fork("done")],
    "dead.retry": [lambda app: app.dead.retry(), lambda app: app.dead.retry(limit=5)],
    "dead.purge": [lambda app: app.dead.purge()],
    "queues.pause": [lambda app: app.queues.pause("default")],
    "queues.resume": [lambda app: app.queues.resume("default")],
    "limits.pause": [lambda app: app.limits.pause("mail")],
    "limits.resume": [lambda app: app.limits.resume("mail")],
    "limits.set": [lambda app: app.limits.set(Limit("mail")), lambda app: app.limits.set(Limit("mail", slots=2))],
    "limits.hold": [lambda app: app.limits.hold("mail", 9e9, held=True)],
    "limits.store": [lambda app: app.limits.store()],
    "schedules.pause": [lambda app: app.schedules.pause("daily")],
    "schedules.resume": [lambda app: app.schedules.resume("daily")],
    "schedules.delete": [lambda app: app.schedules.delete("daily"), lambda app: app.schedules.delete("hourly")],
    "schedules.trigger": [lambda app: app.schedules.trigger("daily"), lambda app: app.schedules.trigger("hourly")],
    "schedules.upsert": [lambda app: app.schedules.upsert("daily", every=3600)],
    "schedules.store": [lambda app: _declaring(app).schedules.store()],
}
LOOKS = {
    "jobs.get",
    "jobs.handle",
    "jobs.list",
    "jobs.history",
    "jobs.position",
    "jobs.explain",
    "jobs.whole",
    "jobs.eta",
    "jobs.signals_of",
    "jobs.value",
    "jobs.streams",
    "jobs.stream",
    "jobs.page",
    "jobs.approval",
    "jobs.approvals",
    "dead.list",
    "queues.glance",
    "dead.groups",
    "queues.stats",
    "queues.plan",
    "limits.list",
    "limits.is_stored",
    "schedules.list",
    "schedules.get",
}
UNKNOWN: list[Callable[[App], Awaitable[Any]]] = [  # jobs that are not in this storage may be in the new one
    lambda app: app.jobs.get("new"),
    lambda app: app.jobs.handle("new"),
    lambda app: app.jobs.position("new"),
    lambda app: app.jobs.explain("new"),
    lambda app: app.jobs.eta("new"),
    lambda app: app.jobs.whole("new"),
    lambda app: app.jobs.signals_of("new"),
    lambda app: app.schedules.get("hourly"),
]

CALLS = {**ACTS, "a look": UNKNOWN}


def _declaring(app: App) -> App:
    @app.every(60)
    @app.task(name="nightly")
    async def nightly() -> None: ...

    return app


def test_each_public_call_is_known_as_an_act_or_a_look() -> None:
    """A new call must be listed here, so that the tests below cover it."""
    app = App("memory://")
    groups = {"jobs": app.jobs, "dead": app.dead, "queues": app.queues, "limits": app.limits}
    groups["schedules"] = app.schedules  # type: ignore[assignment]
    found = {
        f"{group}.{name}"
        for group, calls in groups.items()
        for name in dir(calls)
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(getattr(type(calls), name, None)))
    }
    assert found == (set(ACTS) - {"enqueue"}) | LOOKS


@pytest.mark.filterwarnings("ignore::treadle.OldRows")
@pytest.mark.parametrize("way", ["python", "http"])
@pytest.mark.parametrize("kind", KINDS)
async def test_acts_raise_and_reads_log_that_the_rows_are_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, way: str
) -> None:
    url = await left(kind, tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "treadle"):
        async with seen_from(way, url) as app:
            for name, act in [(name, act) for name, acts in CALLS.items() for act in acts]:
                with pytest.raises(StorageMoved) as told:
                    pytest.fail(f"{name}: {await act(app)!r}")
                assert told.value.target == NEW, name
            for id in ("ready", "done"):
                assert f"was moved to {NEW}" in await app.jobs.explain(id)
                assert (await app.jobs.get(id)).job.id == id
            assert len((await app.jobs.list(task="t")).records) == 2
    assert f"was moved to {NEW}" in caplog.text


@pytest.mark.filterwarnings("ignore::treadle.OldRows")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_over_a_moved_storage_is_not_ready_and_answers_acts_with_410(tmp_path: Path, kind: str) -> None:
    url = await left(kind, tmp_path)
    async with Serving(make_site(App(url), Settings())) as serving, aiohttp.ClientSession(serving.url) as web:
        async with web.get("/readyz") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"] == "storage_moved"
            assert NEW in await answer.text()
        async with web.get("/healthz") as answer:
            assert answer.status == 200
        for path, body in {"/v1/jobs": {"task": "t"}, "/v1/jobs/ready/cancel": {}, "/v1/jobs/done/retry": {}}.items():
            async with web.post(path, json=body) as answer:
                problem = await answer.json()
                assert (path, answer.status, problem["error"]) == (path, 410, "storage_moved")
                assert problem["details"]["target"] == NEW


COMMANDS = (
    "enqueue t",
    "jobs cancel ready",
    "jobs cancel --task t --yes",
    "jobs cancel --task no.such --yes",
    "jobs retry done",
    "jobs run-now ready",
    "jobs delete done",
    "jobs signal ready go",
    "jobs send ready add 1",
    "jobs pause ready",
    "jobs resume ready",
    "jobs rerun done",
    "jobs fork done",
    "jobs show new",
    "jobs explain new",
    "jobs explain new --eta",
    "queues pause default",
    "queues resume default",
    "limits pause mail",
    "limits remove mail",
    "schedules pause daily",
    "schedules resume daily",
    "schedules delete daily",
    "schedules trigger daily",
    "doctor",
)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_command_that_acts_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    url = await left(kind, tmp_path)
    for words in COMMANDS:
        capsys.readouterr()
        code = await asyncio.to_thread(treadle, [*words.split(), "--url", url])
        out, err = capsys.readouterr()
        assert code != 0, words
        assert NEW in out + err, words
    capsys.readouterr()
    for words in (
        "jobs list",
        "jobs explain ready",
        "jobs explain ready --eta",
        "queues plan default",
        "queues stats",
        "queues list",
    ):
        assert await asyncio.to_thread(treadle, [*words.split(), "--url", url]) == 0
        assert f"was moved to {NEW}" in capsys.readouterr().err


OLD: dict[str, Callable[[App], Awaitable[Any]]] = {
    "app.jobs.get": lambda app: app.jobs.get("ready"),
    "app.jobs.list": lambda app: app.jobs.list(task="t"),
    "app.jobs.handle": lambda app: app.jobs.handle("ready"),
    "app.jobs.position": lambda app: app.jobs.position("ready"),
    "app.jobs.signals_of": lambda app: app.jobs.signals_of("ready"),
    "app.dead.list": lambda app: app.dead.list(),
    "app.limits.list": lambda app: app.limits.list(),
    "app.queues.plan": lambda app: app.queues.plan("default"),
    "app.queues.stats": lambda app: app.queues.stats(),
    "app.schedules.list": lambda app: app.schedules.list(),
    "app.schedules.get": lambda app: app.schedules.get("daily"),
}


@pytest.mark.parametrize("way", ["python", "http"])
@pytest.mark.parametrize("kind", KINDS)
async def test_reads_warn_that_the_rows_are_old(tmp_path: Path, kind: str, way: str) -> None:
    url = await left(kind, tmp_path)
    async with seen_from(way, url) as app:
        for name, look in OLD.items():
            with pytest.warns(OldRows) as caught:
                await look(app)
            said = [str(each.message) for each in caught if each.category is OldRows]
            assert said, name
            assert all(each.startswith("app.") and NEW in each for each in said), name
        with pytest.raises(StorageMoved) as told:
            await Job("ready", "t", app._core.client, None).result(timeout=60)
        assert told.value.target == NEW
        with pytest.raises(JobCancelled):
            await Job("done", "t", app._core.client, None).result()


async def test_a_process_with_the_storage_open_during_the_move_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(moved_looks, "monotonic", lambda: now)
    url = url_of("sqlite", tmp_path)
    async with App(url) as app:
        await app.enqueue(app.stub("u").options(id="mine").job())
        with warnings.catch_warnings():
            warnings.simplefilter("error", OldRows)
            await app.jobs.get("mine")
        await left("sqlite", tmp_path, url)
        caplog.clear()
        now += moved_looks.FRESH + 1
        with pytest.warns(OldRows, match="app.jobs.get: .* was moved to"):
            await app.jobs.get("mine")
        assert [each.levelname for each in caplog.records if "was moved to" in each.getMessage()] == ["WARNING"]


@pytest.mark.filterwarnings("ignore::treadle.OldRows")
async def test_each_answer_of_a_server_to_a_read_warns_of_the_move(tmp_path: Path) -> None:
    url = await left("sqlite", tmp_path)
    async with Serving(make_site(App(url), Settings())) as serving, aiohttp.ClientSession(serving.url) as web:
        for path in ("/v1/jobs", "/v1/jobs/ready", "/v1/stats", "/v1/queues", "/v1/limits", "/v1/schedules"):
            async with web.get(path) as answer:
                assert answer.status == 200
                assert NEW in answer.headers["Treadle-Warning"], path
    fresh = App(f"sqlite:///{tmp_path / 'fresh.db'}")
    async with Serving(make_site(fresh, Settings())) as serving, aiohttp.ClientSession(serving.url) as web:
        answer = await web.get("/v1/jobs")
        assert "Treadle-Warning" not in answer.headers
