"""Pages of other origins in the browser of a person who uses the dashboard: they can do nothing and read nothing.

`localhost` is another site than 127.0.0.1; another port of 127.0.0.1 is the same site, so its requests carry cookies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Page

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit
from treadle.server import Settings, Token
from treadle.server.auth.tokens import SCOPES, digest

pytestmark = pytest.mark.slow

SECRET: Final = "trd_operator"
SETTINGS: Final = {
    "without tokens": Settings(),
    "signed in": Settings(tokens=(Token(name="op", digest=digest(SECRET), scopes=tuple(SCOPES)),)),
}
PAGES: Final = Path(__file__).parent / "evil"


class Evil:
    """A server of another origin. Its pages set their title when they are done, and say in it what they could read."""

    def __init__(self) -> None:
        self.victim = ""  # the address that SHOP in a page stands for
        site = web.Application()
        site.router.add_get("/{name}", self._page)
        self.runner = web.AppRunner(site)

    async def _page(self, request: web.Request) -> web.Response:
        text = (PAGES / request.match_info["name"]).read_text()
        return web.Response(text=text.replace("SHOP", self.victim), content_type="text/html")

    async def attack(self, visit: Visit, host: str, page: str) -> Page:
        """Open a page from this host in a tab of its own, and wait until it is done."""
        self.victim = visit.base
        tab = await visit.context.new_page()
        await tab.goto(f"http://{host}:{self.runner.addresses[0][1]}/{page}.html")
        await tab.wait_for_function("document.title")
        return tab


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def evil() -> AsyncIterator[Evil]:
    evil = Evil()
    await evil.runner.setup()
    await web.TCPSite(evil.runner, "127.0.0.1", 0).start()
    yield evil
    await evil.runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=list(SETTINGS))
async def target(tmp_path_factory: pytest.TempPathFactory, request: Any) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("evil"), SETTINGS[request.param], works=False) as shop:
        yield shop


@pytest_asyncio.fixture(loop_scope="session")
async def victim(browser: Browser, target: Shop) -> AsyncIterator[Visit]:
    """The browser of a person who has the dashboard open, signed in if there are tokens."""
    async with Visit(browser, target.url) as visit:
        visit.allow("")  # attacks leave traces in the console
        await visit.open()
        if target.settings.tokens:
            signed = await visit.page.evaluate(
                """async ([token, root]) => (await fetch(root + "/v1/session", {
                    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({token})
                })).status""",
                [SECRET, target.url],
            )
            assert signed == 204
        yield visit


async def untouched(shop: Shop) -> None:
    assert (await shop.app.jobs.list()).records == ()
    assert not [use for use in await shop.app.limits.list() if use.key.startswith("queue:")]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("page", ["form", "fetch"])
async def test_an_evil_page_cannot_act(victim: Visit, target: Shop, evil: Evil, host: str, page: str) -> None:
    await evil.attack(victim, host, page)
    await untouched(target)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_an_evil_page_cannot_read(victim: Visit, evil: Evil, host: str) -> None:
    tab = await evil.attack(victim, host, "read")
    assert await tab.title() == "done"


async def test_an_evil_page_cannot_show_the_dashboard_in_a_frame(victim: Visit, evil: Evil) -> None:
    tab = await evil.attack(victim, "127.0.0.1", "frame")
    inner = tab.frame("inner")
    assert inner is None or await inner.locator("#app").count() == 0


async def test_an_evil_page_does_not_control_a_dashboard_that_it_opens(victim: Visit, evil: Evil) -> None:
    tab = await evil.attack(victim, "localhost", "opener")
    async with victim.context.expect_page() as opening:
        await tab.get_by_role("button", name="Open").click()
    page = await opening.value
    await page.wait_for_load_state()
    assert await page.evaluate("window.opener") is None
    assert await tab.evaluate("window.opened.closed") is True


async def test_the_page_itself_can_act(victim: Visit, target: Shop) -> None:
    """So that the tests above fail for the right reason."""
    status = await victim.page.evaluate(
        "async root => (await fetch(root + '/v1/queues/letters/pause', {method: 'POST'})).status", target.url
    )
    assert status == 200
    await target.app.queues.resume("letters")
