"""The order of requests does not decide whether a web application works: `def` and `async def` endpoints, any first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from treadle import App
from treadle.errors import EventLoopError
from treadle.integrations.starlette import lifespan

ORDERS = [("plain", "awaited"), ("awaited", "plain"), ("plain", "awaited", "plain", "awaited", "awaited", "plain")]


@pytest.fixture(params=["memory://", "sqlite:///{}/jobs.db?synchronous=normal"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(str(request.param).format(tmp_path))

    @app.task(name="leaf")
    async def leaf(n: int) -> int:
        return n

    yield app
    app.sync.close()


Host = Callable[[App, bool], AbstractContextManager[Any]]


def fastapi_host(jobs: App, opens: bool) -> AbstractContextManager[Any]:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    web, leaf = FastAPI(lifespan=lifespan(jobs) if opens else None), jobs.tasks["leaf"]

    @web.post("/plain")
    def plain() -> str:
        return leaf.enqueue_sync(1).id

    @web.post("/awaited")
    async def awaited() -> str:
        return (await leaf.enqueue(2)).id

    return TestClient(web)


def litestar_host(jobs: App, opens: bool) -> AbstractContextManager[Any]:
    from litestar import Litestar, post
    from litestar.testing import TestClient

    from treadle.integrations.litestar import TreadlePlugin

    leaf = jobs.tasks["leaf"]

    @post("/plain", sync_to_thread=True)
    def plain() -> str:
        return leaf.enqueue_sync(1).id

    @post("/awaited")
    async def awaited() -> str:
        return (await leaf.enqueue(2)).id

    return TestClient(Litestar([plain, awaited], plugins=[TreadlePlugin(jobs)] if opens else [], logging_config=None))


def quart_like_host(jobs: App, opens: bool) -> AbstractContextManager[Any]:
    """A framework that runs plain views with `asyncio.to_thread`, as Quart does with `run_sync`."""
    from starlette.testclient import TestClient

    leaf = jobs.tasks["leaf"]
    views: dict[str, Callable[[], Awaitable[Any]]] = {
        "/plain": lambda: asyncio.to_thread(leaf.enqueue_sync, 1),
        "/awaited": lambda: leaf.enqueue(2),
    }

    async def web(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            async with lifespan(jobs)(None):
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await views[scope["path"]]()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return TestClient(web)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("host", [fastapi_host, litestar_host, quart_like_host])
@pytest.mark.parametrize("opens", [False, True], ids=["first request opens", "lifespan"])
def test_every_request_is_answered(jobs: App, host: Host, order: tuple[str, ...], opens: bool) -> None:
    client = host(jobs, opens)
    if opens:
        with client as serving:
            statuses = [serving.post(f"/{kind}").status_code for kind in order]
    else:
        statuses = [client.post(f"/{kind}").status_code for kind in order]  # type: ignore[attr-defined]
    assert all(status in (200, 201) for status in statuses)
    if jobs.url != "memory://":
        assert len(jobs.sync.jobs.list(task="leaf").records) == len(order)


def test_concurrent_requests_of_both_kinds_while_the_first_one_opens_the_app(jobs: App) -> None:
    leaf = jobs.tasks["leaf"]

    async def main() -> int:
        calls: list[Awaitable[Any]] = [asyncio.to_thread(leaf.enqueue_sync, n) for n in range(10)]
        calls += [leaf.enqueue(n) for n in range(10)]
        made = await asyncio.gather(*calls)
        found = len({job.id for job in made})
        await jobs.close()
        return found

    assert asyncio.run(main()) == 20


async def test_only_a_call_that_would_wait_for_itself_is_refused(jobs: App) -> None:
    """An `async def` endpoint that calls the synchronous form blocks its own loop: the error names the other one."""
    with pytest.raises(EventLoopError, match=r"`await leaf\.enqueue\(\.\.\.\)`"):
        jobs.tasks["leaf"].enqueue_sync(1)
    await jobs.tasks["leaf"].enqueue(1)
    await jobs.close()
