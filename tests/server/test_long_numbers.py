"""No door stores a number that a Python client cannot read, and no row that is stored already hides the others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.fixtures import KINDS, a_storage
from tests.server.test_api import Client, session
from treadle import App
from treadle.cli.root import run
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.delayed.ids import shown
from treadle.core.model import NewJob
from treadle.server import Serving, Settings, make_site
from treadle_testkit.shows import shows

__all__ = ["session"]

SMALL, LARGE = "7" * 5_000, "7" * 70_000
DELAYED = "01a2232e-8330-7000-80b3-87d3747dd2b6"
SENTENCE = "expected numbers of at most 4,300 digits, found a longer one: send it as a text"


@pytest.fixture(params=KINDS)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    with a_storage(request.param, tmp_path) as storage:
        app = App(storage=storage)

        @app.task(name="known")
        async def known(number: int) -> None: ...

        async with app:
            yield app


@pytest.fixture
async def call(app: App, session: aiohttp.ClientSession) -> AsyncIterator[Client]:
    async with Serving(make_site(app, Settings(), protocols=[delayed_routes()]), grace=1) as serving:
        yield Client(serving.url, session)


def doors(number: str) -> dict[str, tuple[str, str, str]]:
    raw = json.dumps(f"[{number}]")
    child = '{"id":"c","task":"t","queue":"q","payload":' + raw + "}"
    schedule = '{"every":60,"job":{"task":"t","args":[' + number + "]}}"
    return {
        "args": ("POST", "/v1/jobs", '{"task":"t","args":[' + number + "]}"),
        "kwargs": ("POST", "/v1/jobs", '{"task":"t","kwargs":{"a":[' + number + "]}}"),
        "a known task": ("POST", "/v1/jobs", '{"task":"known","args":[' + number + "]}"),
        "a batch": ("POST", "/v1/jobs/batch", '{"jobs":[{"task":"t","args":[' + number + "]}]}"),
        "a signal": ("POST", "/v1/jobs/waits/signal", '{"name":"s","value":' + number + "}"),
        "a schedule": ("PUT", "/v1/schedules/s", schedule),
        "delayed": ("POST", "/", '{"dueTime":4000000000,"payload":' + number + "}"),
        "enqueue": ("POST", "/v1/work/enqueue", '{"jobs":[' + child + "]}"),
        "a result": (
            "POST",
            "/v1/work/settle",
            '{"outcomes":[{"id":"waits","version":0,"state":"succeeded","result":' + json.dumps(number) + "}]}",
        ),
        "a report": ("POST", "/v1/work/settle", '{"outcomes":[{"id":"waits","version":0,"succeed":' + number + "}]}"),
        "a step": (
            "POST",
            "/v1/work/settle",
            '{"outcomes":[{"id":"waits","version":0,"state":"ready","checkpoints":[["s",' + raw + "]]}]}",
        ),
        "a child": (
            "POST",
            "/v1/work/settle",
            '{"outcomes":[{"id":"waits","version":0,"state":"ready","followups":[' + child + "]}]}",
        ),
    }


@shows("a number of more than 4,300 digits is refused wherever a job can be stored")
@pytest.mark.parametrize("door", doors("1"))
@pytest.mark.parametrize("number", [SMALL, LARGE])
async def test_no_door_stores_such_a_number(app: App, call: Client, door: str, number: str) -> None:
    await app.storage.enqueue([NewJob(id="waits", task="t", queue="q")])
    method, path, body = doors(number)[door]
    headers = {"Content-Type": "application/json"}
    status, answer = await call(method, path, raw=body.encode(), headers=headers)
    if path.endswith("settle") and status == 200:
        [said] = answer["settled"]
        assert said["status"] == "refused", answer
    else:
        assert status in (400, 422), answer
    assert SENTENCE in json.dumps(answer), json.dumps(answer)[:300]
    assert [row.id for row in (await app.jobs.list()).records] == ["waits"]


@shows("a row with a number that Python cannot read does not hide the other rows of its page")
@pytest.mark.parametrize("number", [SMALL, LARGE])
async def test_rows_that_are_stored_already_are_read(
    app: App, call: Client, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("treadle.core.ranges.has_long_number", lambda text: False)
        rows = [
            NewJob(id="long", task="t", queue="q", payload=f"[{number}]"),
            NewJob(id="named", task="t", queue="q", payload=f'{{"args":[],"kwargs":{{"a":{number}}}}}'),
            NewJob(id="good", task="t", queue="q", payload="[1]"),
        ]
        await app.storage.enqueue(rows)
        await app.storage.enqueue(
            [
                NewJob(
                    id=DELAYED, task="delayed.job", queue="delayed", payload=f"[{number}]", headers=(("dueTime", "1"),)
                )
            ]
        )
    for path in (
        "/v1/jobs",
        "/v1/jobs/long",
        "/v1/jobs/named",
        "/v1/jobs/long/history",
        "/v1/jobs?q=good",
        f"/jobs/{shown(DELAYED)}",
    ):
        status, answer = await call("GET", path)  # the client decodes it with the json of Python
        assert status == 200, (path, answer)
    _, page = await call("GET", "/v1/jobs?queue=q")
    assert {job["id"]: len(job["args"]) for job in page["jobs"]} == {"long": 1, "named": 1, "good": 1}


def test_the_command_line_refuses_such_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (SMALL, f"[{SMALL}]", f'{{"a": -{SMALL}}}'):
        assert run(["enqueue", "t", text, "--url", "sqlite:///jobs.db"]) == 2
        assert SENTENCE in capsys.readouterr().err
