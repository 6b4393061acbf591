"""The dashboard in a browser below a prefix: inside FastAPI, Django and Flask, and behind a proxy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.server.dashboard.hosts import PREFIX, by_header, django_host, fastapi_host, flask_host, uvicorn_of
from tests.server.dashboard.shop import Shop, shop_app
from tests.server.dashboard.visits import Visit
from treadle import App
from treadle.server import Settings

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    """The app of a host, with one job, which no worker runs."""
    folder = tmp_path_factory.mktemp("host")
    app = shop_app(App(f"sqlite:///{folder}/shop.db?synchronous=normal"), Shop.__new__(Shop))
    async with app:
        await app.tasks["shop.print_letter"].enqueue("Ada", 1)
        yield app


async def walk(visit: Visit) -> None:
    """A deep link first, then a page by its link, an act, and a reload."""
    page = await visit.open("queues/letters")
    await expect(page.get_by_role("heading", level=1)).to_have_text("letters")
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=re.compile("^Overview")).click()
    await expect(page).to_have_url(f"{visit.base}/dashboard/")
    figures = page.get_by_role("region", name="Figures")
    await expect(figures.get_by_role("link", name=re.compile("^queued 1 "))).to_be_visible()
    await figures.get_by_role("link", name=re.compile("^queued 1 ")).click()
    await expect(page).to_have_url(re.compile(rf"^{visit.base}/dashboard/jobs\?"))
    await page.reload()
    await expect(page.get_by_role("row").filter(has_text="shop.print_letter")).to_be_visible()


@pytest.mark.parametrize("host", [fastapi_host, django_host])
async def test_the_dashboard_works_inside_an_asgi_application(
    browser: Browser, app: App, host: Callable[..., Any]
) -> None:
    async with uvicorn_of(host(app, alone=True)) as url, Visit(browser, url) as visit:
        await walk(visit)
        await expect(visit.page.get_by_role("button", name="Live")).to_be_visible()


async def test_the_user_of_the_host_has_the_rights_of_auth(browser: Browser, app: App) -> None:
    async with uvicorn_of(fastapi_host(app, auth=by_header)) as url:
        async with Visit(browser, url, extra_http_headers={"X-User": "staff"}) as visit:
            await walk(visit)
            page = await visit.open("queues")
            await page.get_by_role("button", name="Pause the queue letters").click()
            await page.get_by_role("button", name="Undo").click()
            await expect(page.get_by_role("region", name="Messages")).to_contain_text("Queue letters resumed")
            await expect(page.get_by_text("staff")).to_be_visible()
        async with Visit(browser, url, extra_http_headers={"X-User": "Ada"}) as visit:
            page = await visit.open("queues")
            await expect(page.get_by_role("rowheader", name="letters")).to_be_visible()
            await expect(page.get_by_role("button", name="Pause the queue letters")).to_have_count(0)
        async with Visit(browser, url) as visit:
            visit.allow("status of 401")
            page = await visit.open()
            await expect(page.locator("body")).to_contain_text("sign in to the application")


async def test_inside_flask_where_streams_may_stall(browser: Browser, tmp_path: Path) -> None:
    app = shop_app(App(f"sqlite:///{tmp_path}/shop.db?synchronous=normal"), Shop.__new__(Shop))
    await app.tasks["shop.print_letter"].enqueue("Ada", 1)
    await app.close()
    with flask_host(app, alone=True) as url:
        async with Visit(browser, url) as visit:
            await visit.page.goto(url)
            await expect(visit.page).to_have_url(f"{url}/dashboard/")
            await walk(visit)
            live = visit.page.get_by_role("button", name=re.compile("Live|Polling|Connecting"))
            await expect(live).to_be_visible()
    assert app._core.life.owner is None, "the app stayed open after its event loop had ended"


async def test_behind_a_proxy_that_names_its_prefix(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(proxies=("127.0.0.1",))
    async with Shop(tmp_path, settings, works=False) as shop:
        await shop.send("print_letter", "Ada", 1)
        async with proxied(shop.url) as url, Visit(browser, url) as visit:
            await walk(visit)


@contextlib.asynccontextmanager
async def proxied(upstream: str) -> AsyncIterator[str]:
    """A reverse proxy that serves a server below a prefix, and removes the prefix from the path -> its URL."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def forward(request: Request) -> Response:
            path = request.url.path.removeprefix(PREFIX) + (f"?{request.url.query}" if request.url.query else "")
            heads = {**request.headers, "X-Forwarded-Prefix": PREFIX}
            body = await request.body()
            answer = await session.request(
                request.method, upstream + path, headers=heads, data=body, allow_redirects=False
            )

            async def parts() -> AsyncIterator[bytes]:
                async with answer:
                    async for chunk in answer.content.iter_any():
                        yield chunk

            kept = {name: value for name, value in answer.headers.items() if name.lower() != "transfer-encoding"}
            return StreamingResponse(parts(), answer.status, kept)

        methods = ["GET", "POST", "PUT", "DELETE"]
        site = Starlette(routes=[Route(f"{PREFIX}/{{path:path}}", forward, methods=methods)])
        async with uvicorn_of(site) as url:
            yield url
