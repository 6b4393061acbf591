"""Fixtures of the browser tests: one browser for each test process, a shop with a server for each module, a page for
each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.server.dashboard.chromium import launched
from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit, keep_artefacts

_reports = pytest.StashKey[dict[str, pytest.TestReport]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a browser use the loop of the session, which it belongs to."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    item.stash.setdefault(_reports, {})[report.when] = report
    return report


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium. If it cannot be made, the tests fail with the reason."""
    async with async_playwright() as playwright:
        found = await launched(playwright)
        yield found
        await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """A shop whose jobs are in every state, with a worker and a server without tokens."""
    async with Shop(tmp_path_factory.mktemp("shop")) as shop:
        await shop.fill()
        yield shop


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, shop: Shop, request: pytest.FixtureRequest) -> AsyncIterator[Visit]:
    """A new profile with one page. A console message, a request to another origin or an error on the page fails the
    test."""
    async with Visit(browser, shop.url) as visit:
        yield visit
        report = request.node.stash.get(_reports, {}).get("call")
        if report is not None and report.failed:
            await keep_artefacts(visit, request.node.nodeid)
            visit.forgive()
