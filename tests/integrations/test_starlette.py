"""Treadle in FastAPI and Starlette: lifespans, a worker inside the web server, mounted pages, and tests of users."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette

from treadle import App, BadOption
from treadle.errors import LifespanFailed, NotADatabase, UnknownTask
from treadle.integrations.starlette import lifespan, mount
from treadle.server import Token
from treadle.server.auth.tokens import SCOPES, digest

LOCAL: dict[str, Any] = {"client": ("127.0.0.1", 50_000), "base_url": "http://localhost"}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")

    @app.task(name="double")
    async def double(n: int) -> int:
        return n * 2

    yield app
    app.sync.close()


def shop(jobs: App, **options: Any) -> FastAPI:
    """An application with an endpoint of each kind."""
    web = FastAPI(**options)
    double = jobs.tasks["double"]

    @web.post("/awaited/{n}")
    async def awaited(n: int) -> str:
        return (await double.enqueue(n)).id

    @web.post("/plain/{n}")
    def plain(n: int) -> str:
        return double.enqueue_sync(n).id

    @web.get("/result/{id}")
    async def result(id: str) -> int:
        found: int = await (await jobs.jobs.handle(id)).result(30)
        return found

    return web


# --- lifespan


def test_the_app_is_open_from_start_up_to_shutdown(jobs: App) -> None:
    with TestClient(shop(jobs, lifespan=lifespan(jobs))) as client:
        assert jobs._core.loop is not None
        assert client.post("/awaited/1").status_code == client.post("/plain/2").status_code == 200
    assert jobs._core.loop is None
    assert len(jobs.sync.jobs.list(task="double").records) == 2


def test_the_own_lifespan_runs_inside_and_its_state_is_that_of_the_application(jobs: App) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[dict[str, str]]:
        await jobs.tasks["double"].enqueue(1)
        seen.append(web.title)
        yield {"pool": "a pool"}
        seen.append("open" if jobs._core.loop is not None else "closed")

    web = FastAPI(title="shop", lifespan=lifespan(jobs, own=own))

    @web.get("/")
    async def home(request: Request) -> str:
        found: str = request.state.pool
        return found

    with TestClient(web) as client:
        assert client.get("/").json() == "a pool"
    assert seen == ["shop", "open"]


def test_a_worker_within_the_web_server_runs_the_jobs(jobs: App) -> None:
    with TestClient(shop(jobs, lifespan=lifespan(jobs, worker={"concurrency": 5, "poll": 0.05}))) as client:
        ids = [client.post(f"/{kind}/{n}").json() for n, kind in enumerate(["awaited", "plain"] * 2)]
        assert [client.get(f"/result/{id}").json() for id in ids] == [0, 2, 4, 6]
        assert [worker.slots for worker in jobs.sync.queues.stats().workers] == [5]
    assert jobs.sync.queues.stats().workers == ()


def test_shutdown_waits_for_running_jobs_and_releases_the_rest(jobs: App) -> None:
    """The worker stops before the own lifespan ends, so a job has its resources until its end."""
    started, ended = threading.Event(), list[str]()

    @jobs.task(name="long")
    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("job")

    @asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[None]:
        yield
        ended.append("resources")

    web = shop(jobs, lifespan=lifespan(jobs, own=own, worker={"grace": 0.05}))
    with TestClient(web):
        job = long.enqueue_sync()
        assert started.wait(30)
    assert ended == ["job", "resources"]
    assert (jobs.sync.jobs.get(job).state, jobs.sync.jobs.get(job).attempt) == ("ready", 0)


def test_the_worker_enters_the_lifespan_of_the_app_inside_that_of_the_web_application(jobs: App) -> None:
    entered: list[str] = []

    @jobs.lifespan
    async def pool() -> AsyncIterator[str]:
        entered.append("pool")
        yield "a pool"
        entered.append("pool closed")

    @jobs.task(name="use")
    async def use() -> str:
        return pool.state

    @asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[None]:
        entered.append("web")
        yield
        entered.append("web closed")

    with TestClient(Starlette(lifespan=lifespan(jobs, own=own, worker={"poll": 0.05}))):
        assert use.enqueue_sync().result_sync(30) == "a pool"
    assert entered == ["web", "pool", "pool closed", "web closed"]


def test_a_lifespan_of_the_app_that_fails_ends_the_start_up(jobs: App) -> None:
    @jobs.lifespan
    async def pool() -> AsyncIterator[str]:
        raise ConnectionError("no database")
        yield

    with pytest.raises(LifespanFailed, match="no database"), TestClient(Starlette(lifespan=lifespan(jobs, worker={}))):
        pass
    assert jobs._core.loop is None


async def test_two_server_processes_share_the_queue(tmp_path: Path) -> None:
    """Each process of `uvicorn --workers 2` opens the app and has a worker of its own."""
    apps = [App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") for _ in range(2)]
    for app in apps:
        app.task(name="double")(_double)
    around = [lifespan(app, worker={"concurrency": 2, "poll": 0.05})(Starlette()) for app in apps]
    async with around[0], around[1]:
        ids = [(await apps[n % 2].tasks["double"].enqueue(n)) for n in range(20)]
        assert [await job.result(30) for job in ids] == [2 * n for n in range(20)]
        assert sum(worker.slots for worker in (await apps[0].queues.stats()).workers) == 4


async def _double(n: int) -> int:
    return 2 * n


def test_start_up_fails_with_the_error_of_the_app_and_leaves_nothing_open(tmp_path: Path, jobs: App) -> None:
    (tmp_path / "no.db").write_text("this is no database, and long enough to show it" * 50)
    with (
        pytest.raises(NotADatabase),
        TestClient(Starlette(lifespan=lifespan(jobs, App(f"sqlite:///{tmp_path}/no.db")))),
    ):
        pass
    with pytest.raises(UnknownTask), TestClient(Starlette(lifespan=lifespan(jobs, worker={"tasks": ["doubel"]}))):
        pass

    @asynccontextmanager
    async def own(web: Starlette) -> AsyncIterator[None]:
        raise ConnectionError("no pool")
        yield

    web = Starlette(lifespan=lifespan(jobs, own=own, worker={}))
    with pytest.raises(ConnectionError, match="no pool"), TestClient(web):
        pass
    assert jobs._core.loop is None


def test_wrong_arguments_raise_before_the_start(jobs: App) -> None:
    with pytest.raises(BadOption, match=r"expected treadle\.App objects"):
        lifespan(FastAPI())  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="nothing"):
        lifespan()
    with pytest.raises(TypeError, match="max_workers"):
        lifespan(jobs, worker={"max_workers": 3})
    with pytest.raises(BadOption, match=r"such as \{\"concurrency\": 5\}"):
        lifespan(jobs, worker=True)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="own"):
        lifespan(jobs, own=5)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="path"):
        mount(Starlette(), "jobs", jobs, alone=True)
    with pytest.raises(BadOption, match=r"expected mount\(web, path, app\)"):
        mount(jobs, FastAPI(), "/jobs")  # type: ignore[arg-type]
    web = Starlette()
    mount(web, "/jobs", jobs, alone=True)
    with pytest.raises(BadOption, match="something mounted at '/jobs/' already"):
        mount(web, "/jobs/", jobs, alone=True)
    with pytest.raises(BadOption, match="only one of auth= and tokens="):
        mount(Starlette(), "/jobs", jobs, tokens=[_token("a")], auth=lambda request: None)


async def test_an_own_lifespan_without_the_decorator_names_it(jobs: App) -> None:
    async def own(web: Any) -> AsyncIterator[None]:
        yield

    with pytest.raises(BadOption, match="@asynccontextmanager"):
        async with lifespan(jobs, own=own)(None):  # type: ignore[arg-type]
            pass


# --- mount


def _token(secret: str) -> Token:
    return Token(name="ops", digest=digest(secret), scopes=tuple(SCOPES))


def test_mounted_job_pages_need_a_token_and_open_with_the_host(jobs: App) -> None:
    @asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[dict[str, int]]:
        yield {"answer": 42}

    web = shop(jobs, lifespan=own)
    mount(web, "/jobs", jobs, tokens=[_token("secret")], worker={"poll": 0.05})

    @web.get("/answer")
    async def answer(request: Request) -> int:
        found: int = request.state.answer
        return found

    with TestClient(web) as client:
        assert client.get("/answer").json() == 42
        assert jobs._core.loop is not None
        assert client.get("/jobs/readyz").text == "ok"
        assert client.get("/jobs/v1/jobs").status_code == 401
        assert "Treadle" in client.get("/jobs/dashboard/").text
        head = {"Authorization": "Bearer secret"}
        sent = client.post("/jobs/v1/jobs", json={"task": "double", "args": [4]}, headers=head)
        assert sent.status_code == 201
        assert client.get(f"/result/{sent.json()['id']}").json() == 8
    assert jobs._core.loop is None


def test_mounted_without_tokens_only_this_machine_may_call(jobs: App) -> None:
    web = Starlette()
    mount(web, "/jobs/", jobs, alone=True)
    with TestClient(web) as client:
        assert client.get("/jobs/v1/jobs").status_code == 403
    with TestClient(web, **LOCAL) as client:
        assert client.get("/jobs/v1/jobs").status_code == 200


def test_the_tokens_of_a_file(jobs: App, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    with pytest.raises(BadOption, match=r"tokens\.toml"):
        mount(Starlette(), "/jobs", jobs, tokens=file)
    file.write_text(f'[[token]]\nname = "ops"\ndigest = "{digest("secret")}"\nscopes = ["read"]\n')
    web = Starlette()
    mount(web, "/jobs", jobs, tokens=str(file))
    with TestClient(web) as client:
        assert client.get("/jobs/v1/jobs", headers={"Authorization": "Bearer secret"}).status_code == 200
    file.write_text("")
    with pytest.raises(BadOption, match="contains no tokens"):
        mount(Starlette(), "/jobs", jobs, tokens=file)


# --- tests that users write


def test_a_test_of_endpoints_and_jobs_without_a_worker(jobs: App) -> None:
    """`app.sync.testing()` around the client: the jobs of the endpoints run when the test says so, in memory."""
    web = shop(jobs, lifespan=lifespan(jobs, worker={"concurrency": 5}))
    with jobs.sync.testing() as t, TestClient(web) as client:
        ids = [client.post("/awaited/1").json(), client.post("/plain/2").json()]
        t.assert_enqueued(jobs.tasks["double"], 2)
        assert t.drain() == 2, "the worker of the lifespan runs nothing"
        assert [client.get(f"/result/{id}").json() for id in ids] == [2, 4]


async def test_the_same_with_an_asynchronous_client(jobs: App) -> None:
    from httpx import ASGITransport, AsyncClient

    web = shop(jobs, lifespan=lifespan(jobs))
    async with jobs.testing() as t, AsyncClient(transport=ASGITransport(web), base_url="http://shop") as client:
        ids = [(await client.post(f"/{kind}/3")).json() for kind in ("plain", "awaited")]
        assert await t.drain() == 2
        assert [(await client.get(f"/result/{id}")).json() for id in ids] == [6, 6]
