"""The page itself: its headers, its addresses, and what a browser may load from it."""

from __future__ import annotations

from playwright.async_api import expect

from tests.dashboard.visits import Visit


async def test_it_opens_and_shows_the_overview(visit: Visit) -> None:
    page = await visit.open()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
