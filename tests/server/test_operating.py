"""Metrics, tasks, timings, limits and the doctor's checks over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.served import host
from tests.server.raw import ask
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App
from treadle.core.clock import wall
from treadle.core.query_model import MetricsRow
from treadle.metrics import Cell, encode
from treadle.metrics.histogram import bucket_of
from treadle.server import Settings
from treadle.server.auth.tokens import SCOPES
from treadle.server.path_parts import path_part
from treadle.storage.memory import MemoryStorage

__all__ = ["session"]

TOKENS = (token("all", *SCOPES), token("bound", "read", "operate", queues=("mine",)))


class Site(NamedTuple):
    app: App
    call: Client

    async def get(self, path: str, name: str = "all") -> Any:
        status, answer = await self.call("GET", path, None, name)
        assert status == 200, answer
        return answer


@pytest.fixture
async def site(session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    app = App(storage=MemoryStorage())

    @app.task(name="mail.send", queue="mine")
    async def send(to: str, password: str = "swordfish", at: datetime | None = None) -> None:
        """Send one mail.

        The rest of the text is for readers of the code.
        """

    @app.task(name="other.task", queue="other")
    async def other() -> None: ...

    yield Site(app, Client(host().add(app, Settings(tokens=TOKENS)), session))
    host().run(app.close())


async def measure(site: Site) -> float:
    """Store what workers would have measured in the last minute; returns its beginning."""
    at = wall() // 60 * 60 - 60
    cells = [
        Cell("mine", "mail.send", succeeded=9, failed=1, retried=2, run={bucket_of(0.5): 9}),
        Cell("other", "other.task", succeeded=5),
        Cell("other", "gone.task", succeeded=7),
    ]
    host().run(site.app.storage.store_metrics([MetricsRow(at=at, span=60.0, source="w", data=encode(cells))]))
    return at


async def test_metrics_are_returned_as_series(site: Site) -> None:
    at = await measure(site)
    found = await site.get(f"/v1/metrics?from={at}&to={at + 120}&step=60")
    assert (found["from"], found["to"], found["step"], found["at"]) == (at, at + 120, 60, [at, at + 60])
    assert (found["succeeded"], found["failed"], found["retried"], found["other"]) == ([21, 0], [1, 0], [2, 0], [0, 0])
    assert found["run"]["p50"] == [pytest.approx(0.5, rel=0.13), None]
    assert (found["sampled"], found["since"]) == (9, at)
    assert (await site.get(f"/v1/metrics?from={at}&to={at + 60}&task=gone.task"))["succeeded"] == [7]
    assert sum((await site.get("/v1/metrics", "bound"))["succeeded"]) == 9
    status, answer = await site.call("GET", "/v1/metrics?queue=other", None, "bound")
    assert (status, answer["error"]) == (403, "forbidden")


@pytest.mark.parametrize("query", ["from=9&to=5", "from=-1", "step=0", "from=x", "from=1e300", "queue="])
async def test_an_invalid_range_is_refused(site: Site, query: str) -> None:
    status, answer = await site.call("GET", f"/v1/metrics?{query}", None, "all")
    assert status == 422, answer


async def test_series_are_bounded(site: Site) -> None:
    found = await site.get("/v1/metrics?from=0&step=60")
    assert len(found["at"]) <= 1_000


async def test_tasks_are_listed_with_their_parameters(site: Site) -> None:
    await measure(site)
    found = {each["name"]: each for each in (await site.get("/v1/tasks"))["tasks"]}
    assert list(found) == ["gone.task", "mail.send", "other.task"]
    send = found["mail.send"]
    assert (send["declared"], send["queue"], send["doc"]) == (True, "mine", "Send one mail.")
    assert send["last_hour"] == {"succeeded": 9, "failed": 1, "retried": 2}
    assert send["run_p95"] == pytest.approx(0.5, rel=0.13)
    assert send["parameters"]["properties"]["to"] == {"type": "string"}
    assert send["parameters"]["properties"]["password"] == {"type": "string"}  # its default is hidden
    assert send["parameters"]["required"] == ["to"]
    gone = found["gone.task"]
    assert (gone["declared"], gone["parameters"], gone["last_hour"]["succeeded"]) == (False, None, 7)


async def test_a_bound_token_sees_the_tasks_of_its_queues(site: Site) -> None:
    await measure(site)
    assert [each["name"] for each in (await site.get("/v1/tasks", "bound"))["tasks"]] == ["mail.send"]


async def test_a_limit_is_paused_and_resumed(site: Site) -> None:
    await site.call("PUT", "/v1/limits/smtp", {"slots": 3}, "all")
    assert (await site.call("POST", "/v1/limits/smtp/pause", None, "all"))[0] == 200
    [use] = (await site.get("/v1/limits"))["limits"]
    assert (use["rule"]["slots"], use["pauses"][0]["why"], use["behind"]["slots"]) == (0, "paused", 3)
    assert (await site.call("POST", "/v1/limits/smtp/resume", None, "all"))[0] == 200
    [use] = (await site.get("/v1/limits"))["limits"]
    assert (use["rule"]["slots"], use["pauses"]) == (3, [])
    _, answer = await site.call("POST", "/v1/limits/smpt/pause", None, "all")
    assert "smtp" in answer["warning"]


@pytest.mark.parametrize("name", ["a/b/pause", "/ 50 % ?x=#é\\", "..", "."])
async def test_names_of_any_characters_are_reachable(site: Site, name: str) -> None:
    part = path_part(name)

    async def call(method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body).encode()
        kind = None if body is None else "application/json"
        url = site.call.url
        answer = await asyncio.to_thread(ask, url, method, path, text, authorization="Bearer all", content_type=kind)
        assert answer.status in (200, 201, 204), (method, path, answer)
        return answer.body

    await call("PUT", f"/v1/limits/{part}", {"slots": 2})
    await call("POST", f"/v1/limits/{part}/pause")
    assert [each["key"] for each in (await call("GET", "/v1/limits"))["limits"]] == [name]
    await call("DELETE", f"/v1/limits/{part}")
    assert (await call("GET", f"/v1/queues/{part}/plan"))["queue"] == name
    await call("POST", f"/v1/queues/{part}/pause")
    if name.strip("."):  # schedules have simpler names; their ticks have ids with a colon
        return
    await call("PUT", f"/v1/schedules/{part}", {"job": {"task": "mail.send", "args": ["anna"]}, "every": 3600})
    assert (await call("GET", f"/v1/schedules/{part}"))["name"] == name
    job = await call("POST", f"/v1/schedules/{part}/trigger")
    assert "attempts" in await call("GET", f"/v1/jobs/{path_part(job['id'])}/history")
    assert (await call("GET", f"/v1/jobs/{path_part(job['id'])}"))["id"] == job["id"]
    await call("DELETE", f"/v1/schedules/{part}")


async def test_a_schedule_has_its_timing_in_words_and_its_last_jobs(site: Site) -> None:
    job = {"task": "mail.send", "args": ["anna"]}
    _, made = await site.call("PUT", "/v1/schedules/s", {"job": job, "cron": "0 3 * * *", "tz": "Europe/Paris"}, "all")
    assert (made["words"], made["cron"], made["tz"], made["every"], made["declared"]) == (
        "at 03:00 every day (Europe/Paris)",
        "0 3 * * *",
        "Europe/Paris",
        None,
        False,
    )
    assert len(made["upcoming"]) == 5
    assert made["upcoming"][0] == made["next_at"]
    assert made["recent"] == []
    [listed] = (await site.get("/v1/schedules"))["schedules"]
    assert listed == await site.get("/v1/schedules/s")
    await site.call("POST", "/v1/schedules/s/pause", None, "all")
    assert (await site.get("/v1/schedules/s"))["upcoming"] == []


async def test_a_timing_is_previewed(site: Site) -> None:
    path = "/v1/schedules/preview"
    status, found = await site.call("POST", path, {"every": 3600}, "all")
    assert (status, found["words"], len(found["upcoming"])) == (200, "every hour", 5)
    for body in (
        {},
        {"cron": "x"},
        {"cron": "0 3 * * *", "every": 5},
        {"cron": "* * * * *", "tz": "No/Where"},
        {"every": -1},
    ):
        status, answer = await site.call("POST", path, body, "all")
        assert status == 422, answer
    assert (await site.call("GET", path, None, "all"))[0] == 404  # it is also a name for a schedule


async def test_the_doctors_checks(site: Site) -> None:
    await site.call("POST", "/v1/jobs", {"task": "mail.send", "args": ["a"], "queue": "nobody"}, "all")
    found = await site.get("/v1/doctor")
    checks = {each["name"]: each for each in found["checks"]}
    assert checks["storage"] == {
        "verdict": "ok",
        "name": "storage",
        "text": "a storage of the app answers",
        "advice": None,
    }
    assert checks["queues"]["verdict"] == "warning"
    assert "nobody" in checks["queues"]["text"]
    assert found["at"] == (await site.get("/v1/doctor"))["at"]  # kept for 30 s
    assert (await site.call("GET", "/v1/doctor", None, "bound"))[0] == 403


async def test_the_doctor_looks_at_a_sqlite_file(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    call = Client(host().add(app, Settings()), session)
    _, found = await call("GET", "/v1/doctor")
    names = {each["name"] for each in found["checks"]}
    assert {"storage", "file", "workers", "clock"} <= names
    assert not [each for each in found["checks"] if each["verdict"] == "error"], found
    host().run(app.close())
