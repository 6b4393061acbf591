"""Live figures: they follow the storage, survive a server that goes away, and cost nothing while nobody looks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit

pytestmark = pytest.mark.slow

HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
    Object.defineProperty(document, "visibilityState", {get: () => hidden ? "hidden" : "visible", configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("live")) as shop:
        await shop.send("print_letter", "Ada", 1)
        yield shop


def figure(page: Page, name: str) -> object:
    return page.get_by_role("region", name="Figures").get_by_role("link", name=re.compile(f"^{name}"))


async def queued(page: Page, number: int) -> None:
    await expect(figure(page, f"queued {number} ")).to_be_visible(timeout=60_000)  # type: ignore[arg-type]


async def jobs(shop: Shop) -> int:
    found = await shop.app.jobs.list(status="queued", queue="letters", limit=0, count=True)
    assert found.total is not None
    return found.total


async def test_the_figures_follow_the_storage(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await queued(page, await jobs(shop))
    await shop.send("print_letter", "Grace", 2)
    await queued(page, await jobs(shop))
    await expect(page.get_by_role("button", name="Live")).to_be_visible()


async def test_the_figures_continue_after_a_restart_of_the_server(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await queued(page, await jobs(shop))
    visit.allow("Failed to load|ERR_|status of 5")
    await shop.stop()
    await expect(page.get_by_role("button", name=re.compile("Connecting|No connection|Polling"))).to_be_visible()
    await shop.send("print_letter", "Edsger", 3)
    await shop.serve()
    await queued(page, await jobs(shop))
    await expect(page.get_by_role("button", name=re.compile("Live|Polling"))).to_be_visible(timeout=30_000)


async def test_a_page_without_streams_polls(visit: Visit, shop: Shop) -> None:
    visit.allow("Failed to load|ERR_FAILED")

    async def refuse(route: Route) -> None:
        await route.abort()

    await visit.context.route("**/v1/overview/events", refuse)
    page = await visit.open()
    await expect(page.get_by_role("button", name="Polling")).to_be_visible(timeout=30_000)
    await shop.send("print_letter", "Barbara", 4)
    await queued(page, await jobs(shop))


async def test_a_hidden_tab_holds_no_stream_and_a_shown_one_is_up_to_date(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await queued(page, await jobs(shop))
    async with page.expect_event("requestfailed", lambda request: "events" in request.url):
        await page.evaluate(HIDE, True)
    await shop.send("print_letter", "Donald", 5)
    await page.evaluate(HIDE, False)
    await queued(page, await jobs(shop))


async def test_paused_figures_do_not_change(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    before = await jobs(shop)
    await queued(page, before)
    await page.keyboard.press("p")
    await expect(page.get_by_role("button", name="Paused")).to_be_visible()
    await shop.send("print_letter", "Radia", 6)
    await queued(page, before)
    await page.get_by_role("button", name="Paused").click()
    await queued(page, before + 1)


async def test_a_job_is_followed_to_its_end(visit: Visit, shop: Shop) -> None:
    job = await shop.send("encode", "film.mp4")
    await shop.until(job.id, "running")
    page = await visit.open(f"jobs/{job.id}")
    await expect(page.locator("main")).to_contain_text("half of the film")
    shop.released.set()
    await expect(page.get_by_role("heading", name="Result")).to_be_visible(timeout=60_000)
    shop.released.clear()


async def test_rows_stay_under_the_reader_and_new_ones_wait_for_a_click(visit: Visit, shop: Shop) -> None:
    page = await visit.open("jobs?queue=letters")
    await expect(page.get_by_role("row").filter(has_text="shop.print_letter").first).to_be_visible()
    before = await page.get_by_role("row").count()
    await shop.send("print_letter", "New", 9)
    fresh = page.get_by_role("button", name=re.compile("1 new"))
    await expect(fresh).to_be_visible(timeout=30_000)
    assert await page.get_by_role("row").count() == before
    await fresh.click()
    await expect(page.get_by_role("row")).to_have_count(before + 1)


@pytest.mark.parametrize("number", [3])
async def test_one_look_serves_all_readers(browser: Browser, shop: Shop, number: int) -> None:
    """The page says how old a look is; all of them show the same one."""
    visits = [Visit(browser, shop.url) for _ in range(number)]
    for visit in visits:
        await visit.__aenter__()
    total = await jobs(shop)
    for visit in visits:
        await queued(await visit.open(), total)
    await shop.send("print_letter", "All", 8)
    for visit in visits:
        await queued(visit.page, total + 1)
        await visit.__aexit__(None, None, None)
