"""The streams of a job on its page: live, void, complete, empty and long ones, and the log."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.test_pages import WIDTHS
from tests.server.dashboard.visits import DESK, Visit
from tests.waiting import Signal
from treadle import Retry, Worker, current

pytestmark = pytest.mark.slow

LINES = 10_000
log = logging.getLogger("shop.mill")


class Mill:
    """A shop whose jobs write streams as far as the test lets them."""

    def __init__(self, shop: Shop) -> None:
        self.moved, self.allowed = Signal(), 0

        @shop.app.task(name="shop.answer", queue="stories", retry=Retry(attempts=2, base=0.0))
        async def answer(words: list[str]) -> str:
            return await current().step("answer", self.say, words)

        @shop.app.task(name="shop.grind", queue="stories")
        async def grind(lines: int) -> None:
            for number in range(lines):
                log.log((20, 20, 30, 40)[number % 4], "grain %d", number)

        @shop.app.task(name="shop.quiet", queue="stories")
        async def quiet() -> None:
            current().stream("nothing")
            await self.moved.until(lambda: self.allowed, "the test lets it end")

        self.answer, self.grind, self.quiet = answer, grind, quiet

    async def say(self, words: list[str]) -> str:
        out = current().stream("answer")
        if current().attempt == 1:
            await out.write("A false start. ")
            log.error("the loom jams")
            raise ValueError("no")
        for number, word in enumerate(words):
            await self.moved.until(lambda number=number: self.allowed > number, f"word {number} is allowed")
            await out.write(word)
        log.info("done")
        return "".join(words)

    def allow(self, words: int) -> None:
        self.allowed = words
        self.moved.send()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    log.setLevel(logging.INFO)
    async with Shop(tmp_path_factory.mktemp("streams"), works=False) as shop:
        yield shop


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(shop: Shop) -> AsyncIterator[Mill]:
    mill = Mill(shop)
    async with Worker(shop.app, queues=["stories"], name="mill", capture_logs="info", grace=2):
        yield mill


@pytest_asyncio.fixture(loop_scope="session")
async def mill(running: Mill) -> AsyncIterator[Mill]:
    running.allow(0)
    yield running
    running.allow(99)


def panel(page: Page) -> Locator:
    return page.get_by_role("region", name="Streams")


async def pictured(visit: Visit, name: str) -> None:
    """Keep a picture of the page in TEST_OUT, for people who look at the design."""
    if folder := os.environ.get("TEST_OUT"):
        await visit.page.screenshot(path=f"{folder}/{name}.png")


async def test_text_grows_while_the_job_runs(visit: Visit, mill: Mill) -> None:
    job = await mill.answer.enqueue(["The weaver ", "lifts ", "the treadle."])
    mill.allow(1)
    page = await visit.open(f"jobs/{job.id}")
    await panel(page).get_by_role("button", name="answer").click()
    text = page.get_by_label("Stream answer")
    await expect(text).to_contain_text("The weaver")
    await expect(panel(page)).to_contain_text("live")
    await pictured(visit, "stream-live")
    mill.allow(2)
    await expect(text).to_contain_text("The weaver lifts ")
    mill.allow(3)
    await expect(text).to_contain_text("The weaver lifts the treadle.")
    await expect(panel(page)).to_contain_text("complete")
    await expect(panel(page)).to_contain_text("3 chunks")


async def test_void_text_is_left_out_or_struck_through(visit: Visit, mill: Mill) -> None:
    job = await mill.answer.enqueue(["Good."])
    mill.allow(1)
    await job.ended(30)
    page = await visit.open(f"jobs/{job.id}")
    text = page.get_by_label("Stream answer")
    await expect(text).to_contain_text("Good.")
    await expect(text).to_contain_text("answer runs again")
    await expect(text).not_to_contain_text("A false start.")
    await panel(page).get_by_role("button", name="Void").click()
    await expect(text.locator("del")).to_have_text("A false start. ")
    await pictured(visit, "stream-void")
    await panel(page).get_by_role("button", name="Log").click()
    lines = page.get_by_label("Log lines").get_by_role("listitem")
    await expect(lines).to_have_count(3)  # one of them names the second attempt
    await expect(lines.first).to_contain_text("error")
    await expect(lines.last).to_contain_text("shop.mill done")


async def test_the_log_grows_while_the_job_runs_and_the_server_restarts(visit: Visit, shop: Shop, mill: Mill) -> None:
    job = await mill.answer.enqueue(["a", "b"])
    page = await visit.open(f"jobs/{job.id}")
    await panel(page).get_by_role("button", name="Log").click()
    await expect(page.get_by_label("Log lines")).to_contain_text("the loom jams")
    visit.allow("Failed to load|ERR_|status of 5")
    await shop.stop()
    await shop.serve()
    mill.allow(2)
    await expect(page.get_by_label("Log lines")).to_contain_text("done", timeout=60_000)
    await expect(page.get_by_label("Log lines").get_by_role("listitem")).to_have_count(3)


async def test_a_long_log_is_shown_at_its_end_and_can_be_scrolled(visit: Visit, mill: Mill) -> None:
    job = await mill.grind.enqueue(LINES)
    await job.ended(60)
    page = await visit.open(f"jobs/{job.id}")
    lines = page.get_by_label("Log lines")
    await expect(panel(page)).to_contain_text(f"{LINES:,} lines")
    await expect(lines.get_by_text(f"grain {LINES - 1}", exact=False)).to_be_in_viewport()
    await pictured(visit, "log-long")
    await lines.evaluate("frame => frame.scrollTop = 0")
    await expect(lines.get_by_text("grain 0", exact=False).first).to_be_in_viewport()


async def test_streams_are_accessible_and_fit(visit: Visit, mill: Mill) -> None:
    job = await mill.answer.enqueue(["Good. "] * 40)
    mill.allow(40)
    await job.ended(30)
    page = await visit.open(f"jobs/{job.id}")
    await panel(page).get_by_role("button", name="Void").click()
    assert await visit.axe() == []
    await page.emulate_media(color_scheme="dark")
    assert await visit.axe("color-contrast") == []
    await panel(page).get_by_role("button", name="Log").click()
    await expect(page.get_by_label("Log lines")).to_contain_text("done")
    assert await visit.axe() == []
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": DESK["height"]})
        assert await visit.overflow() == [], f"{width} px wide"
    await pictured(visit, "log-narrow-dark")


async def test_a_job_without_a_stream_has_no_panel(visit: Visit, shop: Shop, mill: Mill) -> None:
    job = await mill.quiet.enqueue()
    page = await visit.open(f"jobs/{job.id}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("shop.quiet")
    mill.allow(1)
    await job.ended(30)
    await expect(page.get_by_text("succeeded").first).to_be_visible()
    await expect(panel(page)).to_have_count(0)
