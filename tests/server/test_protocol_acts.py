"""The worker protocol's acts of operators are in the audit log, whoever sends them and whatever the sender records."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS, a_storage
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App, Limit, Worker, current
from treadle.admin import audit
from treadle.core.model import NewJob, Record
from treadle.errors import StorageUnavailable
from treadle.server import Serving, Settings, make_site
from treadle.server.auth.tokens import SCOPES
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

__all__ = ["session"]

TOKENS = (
    token("admin", *SCOPES),
    token("ops", "operate"),
    token("fleet", "work", "read", "operate", "enqueue"),
    token("a-ops", "operate", queues=("a",)),
)


class Site:
    def __init__(self, url: str, app: App, session: aiohttp.ClientSession) -> None:
        self.url, self.app, self._call = url, app, Client(url, session)

    async def work(self, verb: str, body: Any, who: str = "ops", status: int = 200, **headers: str) -> Any:
        found, answer = await self._call("POST", f"/v1/work/{verb}", body, who, headers=headers)
        assert found == status, answer
        return answer

    async def entries(self) -> list[tuple[str, str, str, str]]:
        """The name, the source, the act and the target of each entry, the newest last."""
        page = await self.app.audit.list(limit=1_000)
        return [(each.by, each.source, each.act, each.target) for each in reversed(page.entries)]


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path, session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    with a_storage(request.param, tmp_path) as storage:
        app = App(storage=storage)
        async with app, Serving(make_site(app, Settings(tokens=TOKENS)), grace=1) as serving:
            yield Site(serving.url, app, session)


@shows("acts by the worker protocol are in the audit log")
async def test_each_act_has_an_entry(site: Site) -> None:
    await site.app.storage.enqueue([NewJob(id="j", task="t", queue="a"), NewJob(id="k", task="t", queue="a")])
    await site.work("set_limits", {"changes": [{"type": "pause", "name": "queue:default"}]})
    await site.work("set_limits", {"changes": [{"type": "set", "rule": {"name": "queue:*", "slots": 0}}]})
    await site.work("set_limits", {"changes": [{"type": "set", "rule": {"name": "queue:*"}}]})
    await site.work("set_limits", {"changes": [{"type": "pause", "name": "queue:a"}]}, "a-ops")
    await site.work("set_limits", {"changes": [{"type": "resume", "name": "smtp", "why": "held"}]})
    await site.work("recount", {"repair": True})
    await site.work("recount", {"repair": False})
    for _ in range(3):
        await site.work("prune", {"limit": 10})
    outcomes = [{"id": each, "version": 0, "state": "cancelled"} for each in ("j", "k")]
    assert [each["status"] for each in (await site.work("settle", {"outcomes": outcomes}, "fleet"))["settled"]] == [
        "applied",
        "applied",
    ]
    assert await site.entries() == [
        ("ops", "server", "queue.pause", "default"),
        ("ops", "server", "limit.set", "queue:*"),
        ("ops", "server", "limit.delete", "queue:*"),
        ("a-ops", "server", "queue.pause", "a"),
        ("ops", "server", "limit.resume", "smtp"),
        ("ops", "server", "counts.repair", ""),
        ("ops", "server", "rows.prune", ""),
        ("fleet", "server", "job.settle", ""),
    ]
    [newest, *_] = (await site.app.audit.list()).entries
    assert newest.filter == "j state=cancelled; k state=cancelled"


async def test_many_changes_of_one_call_are_all_named(site: Site) -> None:
    names = [f"limit-{number:03d}" for number in range(100)]
    await site.work("set_limits", {"changes": [{"type": "set", "rule": {"name": each, "slots": 7}} for each in names]})
    entries = (await site.app.audit.list(limit=100)).entries
    words = "; ".join(each.filter or "" for each in reversed(entries))
    assert words == "; ".join(f"{each} slots=7" for each in names)


@shows("a fleet that only runs jobs over HTTP leaves no entries in the audit log")
async def test_the_outcomes_of_claims_are_no_acts(site: Site) -> None:
    app = App(f"{site.url}?token=fleet")

    @app.task(name="child")
    async def child(number: int) -> int:
        return number

    @app.task(name="parent")
    async def parent() -> list[int]:
        async with current().once("charge:7"):
            pass
        jobs = [await child.enqueue(number) for number in range(3)]
        return [await job.result(30) for job in jobs]

    async with app, Worker(app, poll=0.05):
        assert await (await parent.enqueue()).result(30) == [0, 1, 2]
        assert await (await app.enqueue(parent.job())).result(30) == [0, 1, 2]
    assert {act for _, _, act, _ in await site.entries()} <= {"rows.prune", "limit.declare"}


async def test_declarations_that_are_stored_are_no_acts(site: Site) -> None:
    def declared() -> App:
        app = App(f"{site.url}?token=fleet")
        app.limits.declare(Limit("smtp", slots=3))

        @app.every(3_600, name="tick")
        @app.task(name="t")
        async def t() -> None: ...

        return app

    for _ in range(3):  # deploys of the same code
        app = declared()
        async with app, Worker(app, poll=0.05, queues=["none"]):
            await app.limits.store()
            await app.schedules.store()
    acts = [(act, target) for _, _, act, target in await site.entries() if act != "rows.prune"]
    assert sorted(acts) == [("limit.declare", ""), ("schedule.set", "tick")]
    app = declared()
    async with app:
        await app.schedules.pause("tick")
        await app.schedules.resume("tick")
        await app.schedules.delete("tick")
    acts = [(act, target) for _, _, act, target in await site.entries()]
    assert acts[-3:] == [(f"schedule.{verb}", "tick") for verb in ("pause", "resume", "delete")]


async def test_a_signal_has_an_entry(site: Site) -> None:
    await site.app.storage.enqueue([NewJob(id="waits", task="t", queue="a")])
    async with App(f"{site.url}?token=fleet") as app:
        await app.jobs.signal("waits", "ok", 1)
    acts = [(act, target) for _, _, act, target in await site.entries()]
    assert set(acts) == {("job.signal", "waits")}


@shows("a client that records its own act leaves one entry")
async def test_a_client_with_an_entry_of_its_own_leaves_one(site: Site) -> None:
    async with App(f"{site.url}?token=fleet") as app:
        async with app.audit.record("queue.pause", "mail", by="ann@desk", source="cli"):
            await app.queues.pause("mail")
        await app.queues.resume("mail")
    assert await site.entries() == [
        ("fleet (ann@desk)", "cli", "queue.pause", "mail"),
        ("fleet", "server", "queue.resume", "mail"),
    ]


async def test_only_an_open_entry_of_the_same_token_about_the_act_replaces_that_of_the_server(site: Site) -> None:
    async def pause(name: str, who: str, entry: str) -> None:
        await site.work("set_limits", {"changes": [{"type": "pause", "name": name}]}, who, **{"Treadle-Entry": entry})

    def row(by: str, target: str) -> dict[str, Any]:
        about = {"by": by, "source": "cli", "act": "queue.pause", "target": target}
        kept = {"delay": 3153600000.0, "deadline": 7776000.0, "keep": 7776000.0, "keep_failed": 0.0}
        return {
            "id": f"{audit.PREFIX}{uuid.uuid4()}",
            "task": audit.TASK,
            "queue": "treadle",
            **kept,
            "payload": json.dumps(about),
        }

    mine, foreign = row("me", "one"), row("x), admin (y", "two")
    [stored] = (await site.work("enqueue", {"jobs": [mine]}))["records"]
    await site.work("enqueue", {"jobs": [foreign]}, "admin")
    await pause("one", "ops", mine["id"])
    await pause("other", "ops", mine["id"])
    await site.work("prune", {"limit": 10}, **{"Treadle-Entry": mine["id"]})
    await pause("two", "ops", foreign["id"])
    await pause("three", "ops", f"{audit.PREFIX}{uuid.uuid4()}")
    await pause("four", "ops", "no id")
    done = {"id": mine["id"], "version": stored["version"], "state": "succeeded", "result": "{}"}
    await site.work("settle", {"outcomes": [done]})
    await pause("five", "ops", mine["id"])
    assert await site.entries() == [
        ("ops (me)", "cli", "queue.pause", "one"),
        ("admin (x], admin [y)", "cli", "queue.pause", "two"),
        ("ops", "server", "limit.pause", "other"),
        ("ops", "server", "rows.prune", ""),
        ("ops", "server", "limit.pause", "two"),
        ("ops", "server", "limit.pause", "three"),
        ("ops", "server", "limit.pause", "four"),
        ("ops", "server", "limit.pause", "five"),
    ]


class WithoutEntries(MemoryStorage):
    """A storage that cannot store entries of the audit log."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if any(job.task == audit.TASK for job in jobs):
            raise StorageUnavailable("no room")
        return await super().enqueue(jobs)


async def test_an_act_without_an_entry_does_not_happen(session: aiohttp.ClientSession) -> None:
    app = App(storage=WithoutEntries())
    async with app, Serving(make_site(app, Settings(tokens=TOKENS)), grace=1) as serving:
        site = Site(serving.url, app, session)
        await app.storage.enqueue([NewJob(id="j", task="t", queue="a")])
        await site.work("set_limits", {"changes": [{"type": "pause", "name": "smtp"}]}, status=503)
        await site.work("prune", {"limit": 10}, status=503)
        await site.work("prune", {"limit": 10}, status=503)
        await site.work("settle", {"outcomes": [{"id": "j", "version": 0, "state": "cancelled"}]}, "fleet", status=503)
        assert await app.storage.limits() == ()
        assert (await app.jobs.get("j")).state == "ready"
