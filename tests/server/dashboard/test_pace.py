"""How often a page reads the API: lists that are slow to read less often, searches by text never by themselves."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit

pytestmark = pytest.mark.slow

JOBS: Final = re.compile(r"/v1/jobs\?")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("pace")) as shop:
        await shop.send("print_letter", "Ada", 1)
        yield shop


async def counted(visit: Visit, first: int = 0) -> list[str]:
    """Move the clock of the page by hand from now on -> the lists that it reads. The first answer takes `first` ms."""
    asked = list[str]()
    await visit.page.clock.install()
    visit.page.on("request", lambda request: asked.append(request.url) if JOBS.search(request.url) else None)

    async def answer(route: Route) -> None:
        if len(asked) == 1 and first:
            await visit.page.clock.run_for(first)
        await route.continue_()

    await visit.page.route(JOBS, answer)
    return asked


async def test_a_list_that_takes_a_second_is_read_once_a_minute(visit: Visit, shop: Shop) -> None:
    asked = await counted(visit, first=1_000)
    page = await visit.open("jobs?queue=letters")
    await expect(page.get_by_role("row").filter(has_text="shop.print_letter")).to_be_visible()
    await page.clock.run_for(40_000)
    async with page.expect_request(JOBS):
        await page.clock.run_for(60_000)  # the clock also runs by itself, so the answer took more than a second
    assert len(asked) == 2


async def test_a_search_by_text_is_not_repeated_by_itself(visit: Visit, shop: Shop) -> None:
    asked = await counted(visit)
    page = await visit.open("jobs?q=nothing-has-this-text")
    await expect(page.locator("main")).to_contain_text("No job matches")
    await page.clock.run_for(180_000)
    async with page.expect_request(JOBS):
        await page.get_by_role("button", name="Search again").click()
    assert len(asked) == 2


async def test_the_page_of_a_worker_that_has_not_seen_all_running_jobs(visit: Visit, shop: Shop) -> None:
    """The server looks at a bounded number of running jobs. Here it found none of the worker among them."""

    async def others(route: Route) -> None:
        answer = await (await route.fetch()).json()
        await route.fulfill(json={**answer, "jobs": [], "cursor": "more"})

    await visit.page.route(re.compile(r"/v1/jobs\?worker=till&"), others)
    page = await visit.open("workers/till")
    await expect(page.locator("main")).to_contain_text("None of the jobs that were looked at")
    await expect(page.locator("main")).not_to_contain_text("It runs no job")
