"""A site that is mounted into another application is ready when its host is, also where no lifespan reaches it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tests.server.dashboard.asgi import call
from tests.server.dashboard.hosts import django_host
from treadle import App
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.queuey import Rules, queue_routes
from treadle.server import Settings, make_site
from treadle.server.dashboard import dashboard_routes

ID = "00000000-0000-7000-8000-000000000000"

FIRST_CALLS = {  # of each kind of site: a path, and the status of its answer
    "api": [("/readyz", 200), ("/v1/jobs", 200), (f"/v1/jobs/{ID}", 404), ("/v1/workers", 200), ("/v1/stats", 200)],
    "dashboard": [("/readyz", 200), ("/dashboard/", 200), ("/v1/overview", 200)],
    "queuey": [("/readyz", 200), ("/jobs", 200), (f"/jobs/{ID}", 404)],
    "delayed": [("/readyz", 200), ("/stats", 200), ("/jobs/00000000000000000000000000", 404)],
}
PROTOCOLS: dict[str, Any] = {
    "api": [],
    "dashboard": [dashboard_routes()],
    "queuey": [queue_routes(Rules())],
    "delayed": [delayed_routes()],
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    yield app
    await app.close()


def starlette_of(site: ASGIApp) -> ASGIApp:
    host = Starlette()
    host.mount("/in", site)
    return host


def fastapi_of(site: ASGIApp) -> ASGIApp:
    from fastapi import FastAPI

    host = FastAPI()
    host.mount("/in", site)
    return host


def litestar_of(site: ASGIApp) -> ASGIApp:
    from litestar import Litestar

    from treadle.integrations.litestar import mounted

    return Litestar([mounted("/in", site)], logging_config=None)


@pytest.mark.parametrize("host", [starlette_of, fastapi_of, litestar_of])
@pytest.mark.parametrize(
    ("kind", "path", "status"), [(kind, *each) for kind, calls in FIRST_CALLS.items() for each in calls]
)
async def test_the_first_request_is_answered(
    app: App, host: Callable[[ASGIApp], ASGIApp], kind: str, path: str, status: int
) -> None:
    web = host(make_site(app, Settings(), PROTOCOLS[kind], kind in ("api", "dashboard")))
    assert (await call(web, f"/in{path}")).status == status
    assert (await call(web, "/in/healthz")).status == 200


async def test_a_mounted_site_next_to_django(app: App) -> None:
    host = django_host(app, alone=True)
    assert (await call(host, "/ops/jobs/readyz")).text == "ok"
    assert (await call(host, "/ops/jobs/v1/jobs")).status == 200


@pytest.mark.parametrize("kind", FIRST_CALLS)
async def test_an_unavailable_storage_is_a_503_of_the_mounted_site(kind: str) -> None:
    """The process is alive, is not ready, and says why; no request hangs or shows a traceback."""
    app = App("redis://127.0.0.1:1")
    site = starlette_of(make_site(app, Settings(), PROTOCOLS[kind], kind in ("api", "dashboard")))
    assert (await call(site, "/in/healthz")).status == 200
    for path, _ in FIRST_CALLS[kind]:
        answer = await call(site, f"/in{path}")
        assert answer.status == 503
        assert "Traceback" not in answer.text
