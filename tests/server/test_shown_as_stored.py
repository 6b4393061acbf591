"""A job as the API shows it: its large texts, payloads that differ from the stored ones, and how to repeat it."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.served import host
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App, Key, Keys, Retry
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest
from treadle.storage.memory import MemoryStorage
from treadle.testing import drain
from treadle_testkit.shows import shows

__all__ = ["session"]

LARGE = "x" * 5_000
BLIND = Token(name="blind", digest=digest("blind"), scopes=("read",), payloads=False)


async def followed(call: Client, id: str) -> list[dict[str, Any]]:
    """The rows that the event stream of a job sends, to its end."""
    async with call.session.get(f"{call.url}/v1/jobs/{id}/events") as stream:
        lines = (await stream.text()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


@shows("The event stream of a job has its large arguments and its large result, as the answer about the job has them")
async def test_large_texts_are_in_the_stream(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    app = App(storage=MemoryStorage(), blobs=tmp_path, offload=2_000)

    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text + "!"

    call = Client(host().add(app, Settings()), session)

    async def enqueue() -> str:
        return (await echo.enqueue(LARGE)).id

    id = host().run(enqueue())
    _, job = await call("GET", f"/v1/jobs/{id}")
    assert job["args"] == [LARGE]
    assert job["withheld"] == {}
    stream = asyncio.create_task(followed(call, id))
    await asyncio.to_thread(host().run, drain(app))
    rows = await stream
    assert [row["args"] for row in rows] == [[LARGE]] * len(rows)
    assert rows[-1]["result"] == LARGE + "!"
    _, page = await call("GET", "/v1/jobs")
    assert page["jobs"][0]["withheld"] == {"arguments": "offloaded", "result": "offloaded"}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([1, {"to": "ada"}], None),
        ([{"password": "hunter2"}], "hidden"),
        ([{"word": "the password"}], None),
        (["x" * 70_000, {"password": "hunter2"}], "hidden"),
        ([date(2026, 1, 2)], "typed"),
        ([], None),
    ],
)
async def test_arguments_that_are_not_shown_as_stored_are_named(
    session: aiohttp.ClientSession, args: list[Any], why: str | None
) -> None:
    app = App(storage=MemoryStorage())
    settings = Settings(tokens=(token("all", "read"), BLIND))
    call = Client(host().add(app, settings), session)

    async def enqueue() -> str:
        return (await app.stub("any").enqueue(*args)).id

    id = host().run(enqueue())
    for path in (f"/v1/jobs/{id}", f"/v1/jobs/{id}/wait?timeout=0"):
        _, job = await call("GET", path, token="all")
        assert job["withheld"] == ({} if why is None else {"arguments": why})
    _, job = await call("GET", f"/v1/jobs/{id}", token="blind")
    assert job["withheld"] == ({"arguments": "shape"} if args else {})


async def test_a_text_that_cannot_be_decrypted_is_named(session: aiohttp.ClientSession) -> None:
    storage = MemoryStorage()
    async with App(storage=storage, keys=Keys(Keys.make("k1"))) as app:
        job = await app.stub("any").enqueue("private")
        call = Client(host().add(App(storage=storage), Settings()), session)
        _, found = await call("GET", f"/v1/jobs/{job.id}")
    assert found["args"] == ["encrypted (key k1)"]
    assert found["withheld"] == {"arguments": "encrypted"}


@shows("The answer about a job has the request that enqueues an equal one, and names what such a job does not have")
async def test_the_options_of_a_job_enqueue_an_equal_one(session: aiohttp.ClientSession) -> None:
    app = App(storage=MemoryStorage())
    call = Client(host().add(app, Settings()), session)
    options: dict[str, Any] = {
        "queue": "mail",
        "priority": 3,
        "limits": ["smtp", "tenant:7"],
        "cost": 2,
        "retry": Retry(attempts=2, base=9.0),
        "timeout": 30.0,
        "max_lost": 1,
        "lease": 20.0,
        "expires": 600.0,
        "lane": "acme",
        "aging": 5.0,
        "keep": 90.0,
        "keep_failed": 80.0,
        "labels": ["vip"],
        "headers": {"trace": "abc"},
    }

    async def enqueue(**more: Any) -> str:
        return (await app.stub("send", **options, **more).enqueue(1)).id

    first = host().run(enqueue())
    _, shown = await call("GET", f"/v1/jobs/{first}")
    assert shown["again"]["without"] == []
    body = {"task": "send", "args": shown["args"], **shown["again"]["options"]}
    _, second = await call("POST", "/v1/jobs", body)

    async def rows() -> list[Any]:
        return [(await app.jobs.get(id)).job for id in (first, second["id"])]

    one, other = host().run(rows())
    ignored = {"id", "nonce", "delay"}
    fields = [name for name in one.__struct_fields__ if name not in ignored]
    assert {name: getattr(one, name) for name in fields} == {name: getattr(other, name) for name in fields}

    keyed = host().run(enqueue(key=Key("once"), after=[first]))
    _, shown = await call("GET", f"/v1/jobs/{keyed}")
    assert shown["again"]["without"] == ["key", "after"]


async def test_headers_that_are_hidden_are_not_sent_again(session: aiohttp.ClientSession) -> None:
    app = App(storage=MemoryStorage())
    call = Client(host().add(app, Settings()), session)

    async def enqueue() -> str:
        return (await app.stub("send", headers={"authorization": "hunter2", "trace": "a"}).enqueue()).id

    _, shown = await call("GET", f"/v1/jobs/{host().run(enqueue())}")
    assert shown["withheld"] == {"headers": "hidden"}
    assert shown["again"]["without"] == ["headers"]
    assert "headers" not in shown["again"]["options"]
