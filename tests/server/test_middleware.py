"""Every call that enqueues passes the enqueue middleware of the server's app, emits "enqueued", and compares chosen
ids."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.served import host
from tests.server.test_api import Client
from treadle import App, Event, Middleware, Record, RunOutcome
from treadle.contrib.delayed.app import delayed_routes, read
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.server import Settings
from treadle_testkit.shows import shows


class Tenant(Middleware):
    """Adds a header; refuses the task `forbidden`."""

    async def enqueue(self, specs: Any, proceed: Any) -> Any:
        if any(spec.new.task == "forbidden" for spec in specs):
            raise ValueError("not for this tenant")
        return await proceed([spec.with_headers({"tenant": "42"}) for spec in specs])


class Site:
    """An app with that middleware, served with both protocols."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.app = App("memory://")
        self.app.middleware(Tenant)
        self.events: list[Event] = []
        self.app.on("enqueued")(self.events.append)
        settings = Settings(max_wait=5)
        self.delayed = Client(host().add(self.app, settings, [delayed_routes()]), session)
        self.queue = Client(host().add(self.app, settings, [queue_routes(Rules())]), session)
        self.call = self.delayed

    def row(self, id: str) -> Any:
        return host().run(self.app.jobs.get(id))

    def headers(self, id: str) -> dict[str, str]:
        return dict(self.row(id).job.headers)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with aiohttp.ClientSession() as session:
        yield Site(session)


async def test_the_delayed_protocol_passes_the_middleware(site: Site) -> None:
    due = site.app._core.now() + 60
    key = {"Idempotency-Key": "one"}
    answers = [await site.delayed("POST", "/", {"payload": p, "dueTime": due}, headers=key) for p in ("a", "a", "b")]
    assert [status for status, _ in answers] == [200, 200, 400]
    id = read(answers[0][1]["jobId"])
    assert answers[1] == answers[0]
    assert site.headers(id)["tenant"] == "42"
    assert [event.id for event in site.events] == [id]


async def test_the_queue_protocol_passes_the_middleware(site: Site) -> None:
    key = {"Idempotency-Key": "one"}
    asked = [{"binary_addr": address} for address in ("sha256:a", "sha256:a", "sha256:b")]
    answers = [await site.queue("POST", "/jobs/create", each, headers=key) for each in asked]
    assert [status for status, _ in answers] == [200, 200, 422]
    id = answers[0][1]["job_id"]
    assert answers[1][1]["job_id"] == id
    assert site.headers(id) == {"tenant": "42"}
    assert [event.id for event in site.events] == [id]


async def report(site: Site, *then: dict[str, Any]) -> tuple[str, Any]:
    """A runner in another language reports these follow-up jobs. Return the job's id, and the status of the settle."""
    _, parent = await site.call("POST", "/v1/jobs", {"task": "parent", "queue": uuid.uuid4().hex})
    ask = {"worker": f"r#{uuid.uuid4().hex}", "queues": [[parent["queue"], 1]], "max_lost": 3, "limit": 1}
    _, claimed = await site.call("POST", "/v1/work/claim", ask)
    [row] = claimed["records"]
    said = {"id": parent["id"], "version": row["version"], "succeed": 1, "followups": then}
    answers = [await site.call("POST", "/v1/work/settle", {"outcomes": [said]}) for _ in range(2)]
    first, second = (answer["settled"][0]["status"] for _, answer in answers)
    if first == "refused":  # the first report has ended the job
        assert second == "stale"
    else:
        assert answers[0] == answers[1], "a repeated report is answered alike"
    return parent["id"], answers[0][1]["settled"][0]


async def test_the_children_that_a_foreign_runner_reports_pass_the_middleware(site: Site) -> None:
    id, settled = await report(site, {"id": "", "task": "child"}, {"id": "mine", "task": "child"})
    assert settled["status"] == "applied"
    assert [site.headers(child)["tenant"] for child in site.row(id).after] == ["42", "42"]


async def test_an_exception_of_middleware_fails_the_run_of_a_foreign_runner(site: Site) -> None:
    id, settled = await report(site, {"id": "", "task": "forbidden"})
    assert settled["status"] == "applied"
    row = site.row(id)
    assert (row.state, row.attempt, row.after) == ("ready", 1, ())
    assert row.error.startswith("ValueError: not for this tenant")


async def test_a_foreign_runner_that_chooses_the_id_of_another_job_is_refused(site: Site) -> None:
    """The job with that id does not become its child."""
    other = {"task": "other", "id": "order-1"}
    assert (await site.call("POST", "/v1/jobs", other))[0] == 201
    _, settled = await report(site, {"id": "order-1", "task": "child", "payload": json.dumps([1])})
    assert settled["status"] == "refused"
    assert "id 'order-1' is taken by a job of other" in settled["reason"]


class Reports(Middleware):
    """Keeps the reports on runs of other programs, and raises then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bool, str | None]] = []

    def reported(self, record: Record, outcome: RunOutcome, error: str | None) -> None:
        self.seen.append((record.job.id, outcome.name, outcome.final, error))
        raise RuntimeError("a broken observer")


@shows("The server tells middleware of each run that a runner in another language reports")
async def test_runs_of_foreign_runners_are_reported_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the report is repeated; an exception of the middleware changes nothing."""
    layer = Reports()
    site.app.middleware(layer)
    id, settled = await report(site, {"id": "", "task": "child"})
    assert settled["status"] == "applied"
    assert layer.seen == [(id, "waiting", False, None)]
    queue = uuid.uuid4().hex
    _, job = await site.call("POST", "/v1/jobs", {"task": "one", "queue": queue, "retry": {"attempts": 1}})
    ask = {"worker": f"r#{uuid.uuid4().hex}", "queues": [[queue, 1]], "max_lost": 3, "limit": 1}
    _, claimed = await site.call("POST", "/v1/work/claim", ask)
    said = {"id": job["id"], "version": claimed["records"][0]["version"], "fail": "KeyError: x"}
    await site.call("POST", "/v1/work/settle", {"outcomes": [said]})
    assert layer.seen[1:] == [(job["id"], "failed", True, "KeyError: x")]
    assert "Reports.reported failed" in caplog.text
