"""Treadle in Flask: views enqueue without an event loop, tasks run in the application's context, and tests of users."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g

from tests.kit import work
from treadle import App, BadOption, UnknownJob
from treadle.integrations.flask import app_context


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    yield app
    app.sync.close()


def site(jobs: App) -> Flask:
    web = Flask("shop")
    web.config["SENDER"] = "shop@example.org"

    @jobs.task(name="welcome")
    @app_context(web)
    def welcome(to: str) -> str:
        return f"{current_app.config['SENDER']} to {to}"

    @web.post("/signup/<to>")
    def signup(to: str) -> tuple[dict[str, str], int]:
        return {"job": welcome.enqueue_sync(to).id}, 202

    @web.get("/jobs/<id>")
    def status(id: str) -> dict[str, Any]:
        job = jobs.sync.jobs.handle(id)
        state = jobs.sync.jobs.get(id).state
        return {"state": state, "result": job.result_sync(0) if state == "succeeded" else None}

    @web.errorhandler(UnknownJob)
    def unknown(error: UnknownJob) -> tuple[dict[str, str], int]:
        return {"error": str(error)}, 404

    return web


def test_a_view_enqueues_and_a_worker_runs_the_task_in_the_context_of_the_application(jobs: App) -> None:
    client = site(jobs).test_client()
    sent = [client.post(f"/signup/{name}").get_json()["job"] for name in ("ada", "eve")]
    worker = work(jobs)
    jobs.sync.call(worker.start())
    found = [jobs.sync.jobs.handle(id).result_sync(30) for id in sent]
    jobs.sync.call(worker.stop())
    assert found == ["shop@example.org to ada", "shop@example.org to eve"]
    assert client.get(f"/jobs/{sent[0]}").get_json() == {"state": "succeeded", "result": found[0]}
    assert client.get("/jobs/nobody").status_code == 404


def test_a_test_of_views_and_jobs_without_a_worker(jobs: App) -> None:
    client = site(jobs).test_client()
    with jobs.sync.testing() as t:
        id = client.post("/signup/ada").get_json()["job"]
        t.assert_enqueued(jobs.tasks["welcome"], "ada")
        assert client.get(f"/jobs/{id}").get_json() == {"state": "ready", "result": None}
        assert t.drain() == 1
        assert client.get(f"/jobs/{id}").get_json()["result"] == "shop@example.org to ada"


def test_each_run_has_a_context_of_its_own_which_ends_in_the_thread_of_the_run(jobs: App) -> None:
    """An extension closes its database session there, as after a request."""
    web, ended = Flask("shop"), list[tuple[Any, int]]()

    @web.teardown_appcontext
    def leave(error: BaseException | None) -> None:
        ended.append((g.run, threading.get_ident()))

    @app_context(web)
    def task(n: int) -> int:
        assert "run" not in g
        g.run = n
        return threading.get_ident()

    with ThreadPoolExecutor(2) as pool:
        ran = [pool.submit(task, n).result() for n in range(4)]
    assert ended == list(enumerate(ran))


async def test_coroutines_have_the_context_too(jobs: App) -> None:
    web = Flask("shop")

    @app_context(web)
    async def name() -> str:
        return current_app.name

    assert await name() == "shop"


def test_a_factory_is_called_once_and_late(jobs: App) -> None:
    """`create_app` usually imports the module of the tasks, so it cannot be called while that is imported."""
    made: list[Flask] = []

    def create_app() -> Flask:
        made.append(Flask("shop"))
        return made[0]

    @app_context(create_app)
    def name(n: int) -> str:
        return current_app.name

    assert made == []
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(name, range(8))} == {"shop"}
    assert len(made) == 1


def test_an_object_that_is_no_flask_application_is_refused() -> None:
    with pytest.raises(BadOption, match="expected a Flask application"):
        app_context("shop")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="it returned 5"):
        app_context(lambda: 5)(lambda: None)()  # type: ignore[arg-type, return-value]
