"""The keyboard alone: every page, the list, the help, and the way from a failed job to its retry."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import PATIENCE, Visit
from tests.waiting import until

pytestmark = pytest.mark.slow

INK: Final = "getComputedStyle(document.querySelector('h1')).color"
TRIES: Final = 5
PLACES: Final = {
    "j": "Jobs",
    "f": "Failures",
    "w": "Workflows",
    "s": "Schedules",
    "q": "Queues",
    "l": "Limits",
    "k": "Workers",
    "h": "Health",
    "a": "Activity",
    "o": "Overview",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("keys")) as shop:
        await shop.fill()
        yield shop


async def press(page: Page, *keys: str) -> None:
    for key in keys:
        await page.keyboard.press(key)


async def go_to(page: Page, key: str, name: str) -> None:
    """Press g and the key until the page is there: the second key counts within 1.2 s, and a busy machine is slower."""
    heading = page.get_by_role("heading", level=1)
    for _ in range(TRIES):
        await press(page, "g", key)
        try:
            await expect(heading).to_have_text(name, timeout=PATIENCE / TRIES)
        except AssertionError:
            continue
        return
    await expect(heading).to_have_text(name)


async def outlined(page: Page) -> bool:
    """Whether the element that has the focus shows that it has."""
    found: bool = await page.evaluate(
        """() => {
            const style = getComputedStyle(document.activeElement);
            return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
        }"""
    )
    return found


async def test_two_keys_lead_to_each_page(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    for key, name in PLACES.items():
        await go_to(page, key, name)
        await expect(page.get_by_role("heading", level=1)).to_be_focused()


async def test_the_help_lists_the_keys_and_escape_closes_it(visit: Visit, shop: Shop) -> None:
    page = await visit.open("jobs")
    await expect(page.get_by_role("row").nth(1)).to_be_visible()
    await press(page, "?")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Retry the job")
    assert await visit.axe() == []
    await press(page, "Escape")
    await expect(dialog).to_have_count(0)


async def test_a_failed_job_is_found_read_and_retried(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await go_to(page, "j", "Jobs")
    await expect(page.get_by_role("heading", level=1)).to_be_focused()  # where a screen reader begins to read
    await press(page, "/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await page.keyboard.type("img/3.png")
    await press(page, "Enter")
    await expect(page).to_have_url(re.compile("q=img"))
    await expect(page.get_by_role("row")).to_have_count(2)
    await press(page, "j")
    assert await outlined(page)
    await press(page, "Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("shop.thumbnail")
    id = page.url.rpartition("/")[2]
    before = (await shop.row(id)).reopenings
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    await press(page, "r")
    await expect(page.get_by_role("region", name="Messages")).to_contain_text("queued again")

    async def again() -> bool:
        row = await shop.row(id)
        return row.reopenings == before + 1 and str(row.state) == "failed"

    await until(again, "the retried job fails again")
    await press(page, "u")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


async def test_the_tab_key_shows_where_it_is_and_reaches_the_page(visit: Visit, shop: Shop) -> None:
    page = await visit.open("queues")
    await expect(page.get_by_role("button", name="Pause the queue mail")).to_be_visible()
    await press(page, "Tab")
    skip = page.get_by_role("link", name="Skip to the page")
    await expect(skip).to_be_focused()
    assert await outlined(page)
    await press(page, "Enter")
    await expect(page.locator("main")).to_be_focused()
    for _ in range(8):
        await press(page, "Tab")
        assert await outlined(page), await page.evaluate("document.activeElement.outerHTML.slice(0, 200)")


async def test_rows_are_selected_and_acted_on(visit: Visit, shop: Shop) -> None:
    page = await visit.open("jobs?status=queued")
    first = page.get_by_role("row").nth(1).get_by_role("link").first
    await expect(first).to_be_visible()
    await page.locator("main").focus()
    await press(page, "j")
    await expect(first).to_be_focused()
    await press(page, "x", "j", "x")
    await expect(page.get_by_role("region", name="Selected jobs")).to_contain_text("2 selected")
    await press(page, "c")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Cancel 2 jobs")).to_be_enabled()
    await press(page, "Escape")
    await expect(dialog).to_have_count(0)


async def test_a_dialog_keeps_the_focus_and_returns_it(visit: Visit, shop: Shop) -> None:
    page = await visit.open("limits")
    button = page.get_by_role("button", name="Add a limit")
    await button.focus()
    await press(page, "Enter")
    await expect(page.get_by_label("Name")).to_be_focused()
    assert await visit.axe() == []
    await press(page, "Escape")
    await expect(button).to_be_focused()


async def test_single_keys_do_nothing_while_a_field_has_the_focus(visit: Visit, shop: Shop) -> None:
    page = await visit.open("jobs")
    field = page.get_by_role("searchbox")
    await field.fill("")
    await field.press_sequentially("gqrcx?")
    await expect(field).to_have_value("gqrcx?")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_go_to_finds_a_queue_and_an_id(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    for text, heading in (("letters", "letters"), (shop.ids["failed"], "shop.thumbnail")):
        await press(page, "Control+k")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.type(text)
        await expect(page.get_by_role("option").first).to_be_visible()
        await press(page, "Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text(heading)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_theme_follows_the_system_and_a_key_changes_it(visit: Visit, shop: Shop, scheme: str) -> None:
    page = await visit.open()
    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    before = await page.evaluate(INK)
    await press(page, "t")
    await page.wait_for_function(f"before => {INK} !== before", arg=before)
