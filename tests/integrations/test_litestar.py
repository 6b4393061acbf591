"""Treadle in Litestar: the plugin opens the app, injects it, runs a worker, and serves the job pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.testing import TestClient

from treadle import App, BadOption
from treadle.integrations.litestar import TreadlePlugin
from treadle.server import Token
from treadle.server.auth.tokens import SCOPES, digest

OPS = Token(name="ops", digest=digest("secret"), scopes=tuple(SCOPES))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")

    @app.task(name="double")
    async def double(n: int) -> int:
        return n * 2

    yield app
    app.sync.close()


@post("/jobs/{n:int}")
async def send(n: FromPath[int], jobs: NamedDependency[App]) -> str:
    return (await jobs.find_task("double").enqueue(n)).id


@get("/jobs/{id:str}")
async def result(id: FromPath[str], jobs: NamedDependency[App]) -> int:
    found: int = await (await jobs.jobs.handle(id)).result(30)
    return found


def test_a_handler_gets_the_app_and_the_worker_runs_its_jobs(app: App) -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def own(web: Litestar) -> AsyncIterator[None]:
        seen.append(app._core.loop)
        yield
        seen.append(app._core.loop)

    web = Litestar(
        [send, result], lifespan=[own], plugins=[TreadlePlugin(app, worker={"poll": 0.05})], logging_config=None
    )
    with TestClient(web) as client:
        id = client.post("/jobs/4").text
        assert client.get(f"/jobs/{id}").json() == 8
    assert len(seen) == 2
    assert all(loop is not None for loop in seen), "the app is open while the application's own lifespan lasts"
    assert app._core.loop is None


def test_the_job_pages(app: App) -> None:
    web = Litestar([send], plugins=[TreadlePlugin(app, path="/ops/jobs", tokens=[OPS])], logging_config=None)
    with TestClient(web) as client:
        head = {"Authorization": "Bearer secret"}
        id = client.post("/jobs/4").text
        assert client.get("/ops/jobs/readyz").text == "ok"
        assert client.get("/ops/jobs/v1/jobs").status_code == 401
        assert client.get(f"/ops/jobs/v1/jobs/{id}", headers=head).json()["args"] == [4]
        page = client.get("/ops/jobs", follow_redirects=False)
        assert page.headers["location"] in ("jobs/dashboard/", "dashboard/")
        assert "/ops/jobs/" in client.get("/ops/jobs/dashboard/jobs").text


def test_the_tokens_of_a_file(app: App, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    with pytest.raises(BadOption, match=r"tokens\.toml"):
        TreadlePlugin(app, path="/ops/jobs", tokens=file)
    file.write_text(f'[[token]]\nname = "ops"\ndigest = "{digest("secret")}"\nscopes = ["read"]\n')
    web = Litestar([send], plugins=[TreadlePlugin(app, path="/ops/jobs", tokens=str(file))], logging_config=None)
    with TestClient(web) as client:
        assert client.get("/ops/jobs/v1/jobs").status_code == 401
        assert client.get("/ops/jobs/v1/jobs", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_invalid_tokens_are_refused(app: App) -> None:
    for wrong in (["secret"], [OPS, None], [b"secret"]):
        with pytest.raises(BadOption, match=r"expected a tuple of treadle\.server\.Token") as caught:
            TreadlePlugin(app, path="/ops/jobs", tokens=wrong)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)


def test_in_a_test_the_worker_runs_nothing(app: App) -> None:
    web = Litestar([send, result], plugins=[TreadlePlugin(app, worker={"concurrency": 5})], logging_config=None)
    with app.sync.testing() as t, TestClient(web) as client:
        id = client.post("/jobs/1").text
        assert t.drain() == 1
        assert client.get(f"/jobs/{id}").json() == 2


def test_wrong_arguments_raise_before_the_start(app: App) -> None:
    with pytest.raises(BadOption, match=r"treadle\.App"):
        TreadlePlugin("sqlite:///x.db")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="name of a parameter"):
        TreadlePlugin(app, name="my jobs")
    with pytest.raises(BadOption, match="nothing is served without path="):
        TreadlePlugin(app, tokens=[OPS])
    with pytest.raises(TypeError, match="max_jobs"):
        TreadlePlugin(app, worker={"max_jobs": 5})
