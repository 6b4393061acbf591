"""Every page: it has its heading, its contents, no accessibility fault in light and dark, and fits narrow windows."""

from __future__ import annotations

import re
from typing import Final

import pytest
from playwright.async_api import Page, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import DESK, Visit
from tests.waiting import until

pytestmark = pytest.mark.slow

# Address (with the name of one of the shop's jobs in braces) -> its heading, and a text that shows that it has loaded.
PAGES: Final = {
    "": ("Overview", "letters"),
    "jobs": ("Jobs", "shop.print_letter"),
    "jobs?status=failed": ("Jobs", "shop.thumbnail"),
    "jobs?status=running": ("Jobs", "film.mp4"),
    "jobs/{failed}": ("shop.thumbnail", "ValueError: cannot make a thumbnail of /img/0.png: size 13"),
    "jobs/{running}": ("shop.encode", "half of the film"),
    "jobs/{blocked}": ("shop.encode", "tenant:7"),
    "jobs/{asking}": ("shop.approve", "approved"),
    "failures": ("Failures", "ValueError: cannot make a thumbnail"),
    "workflows": ("Workflows", "shop.order"),
    "workflows/{workflow}": ("shop.order", "5 of 5 jobs"),
    "schedules": ("Schedules", "at 03:00 every day"),
    "schedules/nightly": ("nightly", "Europe/Paris"),
    "queues": ("Queues", "letters"),
    "queues/letters": ("letters", "shop.print_letter"),
    "limits": ("Limits", "tenant:7"),
    "workers": ("Workers", "till"),
    "workers/till": ("till", "shop.encode"),
    "health": ("Health", "storage"),
    "activity": ("Activity", ""),
    "no/such/page": ("No such page", "This address leads nowhere"),
    "jobs/none": ("none", "No such job"),
}
WIDTHS: Final = (1280, 768, 390)


async def loaded(visit: Visit, shop: Shop, path: str) -> Page:
    """Open a page of PAGES and wait for its contents."""
    heading, text = PAGES[path]
    if path == "jobs/none":
        visit.allow("status of 404")
    page = await visit.open(path.format(**shop.ids))
    await expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
    await expect(page.locator("main")).to_contain_text(text)
    await expect(page.get_by_text("Loading")).to_have_count(0)
    return page


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_accessible_and_fits(visit: Visit, shop: Shop, path: str) -> None:
    page = await loaded(visit, shop, path)
    assert await page.title() != ""
    assert await visit.axe() == []
    await page.emulate_media(color_scheme="dark")
    assert await visit.axe("color-contrast") == []
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": DESK["height"]})
        assert await visit.overflow() == [], f"{width} px wide"


async def test_the_overview_has_the_figures_of_the_shop(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    figures = page.get_by_role("region", name="Figures")
    await expect(figures.get_by_role("link", name=re.compile("^queued 40"))).to_be_visible()
    await expect(figures.get_by_role("link", name=re.compile("^failed 10"))).to_be_visible()
    notices = page.get_by_role("list", name="Notices")
    await expect(notices).to_contain_text("letters")  # no worker serves it
    await expect(page.get_by_role("button", name="Live")).to_be_visible()


async def test_a_link_of_the_navigation_leads_to_each_page(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    places = page.get_by_role("navigation", name="Pages")
    for name in (
        "Jobs",
        "Failures",
        "Workflows",
        "Schedules",
        "Queues",
        "Limits",
        "Workers",
        "Health",
        "Activity",
        "Overview",
    ):
        await places.get_by_role("link", name=re.compile(f"^{name}")).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await expect(page).to_have_title(re.compile(name))


async def test_back_and_reload_keep_the_page(visit: Visit, shop: Shop) -> None:
    page = await visit.open("jobs?queue=images")
    row = page.get_by_role("row").filter(has_text="shop.thumbnail").first
    await row.get_by_role("link", name="shop.thumbnail").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("shop.thumbnail")
    await page.go_back()
    await expect(page).to_have_url(re.compile(r"jobs\?queue=images$"))
    await page.reload()
    await expect(page.get_by_role("row").filter(has_text="shop.thumbnail").first).to_be_visible()
    await expect(page.get_by_role("table")).not_to_contain_text("shop.print_letter")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("failed", "failed"),
        ("blocked", "tenant:7"),
        ("queued", "letters"),
        ("scheduled", "2026|in |due"),
        ("asking", "approved"),
        ("running", "till"),
    ],
)
async def test_a_job_shows_why_it_is_in_its_state(visit: Visit, shop: Shop, name: str, words: str) -> None:
    page = await visit.open(f"jobs/{shop.ids[name]}")
    await expect(page.get_by_test_id("why")).to_have_text(re.compile(words))


async def test_an_estimate_is_made_when_a_reader_asks(visit: Visit, shop: Shop) -> None:
    page = await visit.open(f"jobs/{shop.ids['queued']}")
    await page.get_by_role("button", name="Estimate the start").click()
    await expect(page.get_by_test_id("estimate")).to_contain_text("does not start by itself")  # there is no worker


async def test_links_lead_to_names_of_any_characters(visit: Visit, shop: Shop) -> None:
    for name in ("a/b 50 %?x#é", ".."):
        job = await shop.send("print_letter", "Ada", 99, queue=name)
        page = await visit.open("queues")
        await page.get_by_role("link", name=name, exact=True).click()
        for _ in range(2):
            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
            await expect(page.locator("main")).to_contain_text("shop.print_letter")
            await page.reload()
        await shop.app.queues.pause(name)
        await page.get_by_role("button", name="Resume").first.click()
        await until(lambda name=name: _is_open(shop, name), f"{name} is resumed")
        await shop.app.jobs.cancel(job)
        await shop.app.jobs.delete(job)


async def _is_open(shop: Shop, name: str) -> bool:
    return not [each for each in await shop.app.limits.list() if each.key == f"queue:{name}"]


async def test_the_fonts_and_scripts_come_from_the_server_and_nothing_else_is_loaded(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    loaded = await page.evaluate("performance.getEntriesByType('resource').map(each => each.name)")
    assert loaded
    assert all(each.startswith((f"{shop.url}/dashboard/assets/", f"{shop.url}/v1/", "data:")) for each in loaded), (
        loaded
    )


async def test_the_policy_is_enforced(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    visit.allow("Content Security Policy")
    await page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.injected = 1";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.injected = 2'>");
        }"""
    )
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    visit.allow("404")
    assert await page.evaluate("window.injected") is None
    assert any("Content Security Policy" in each for each in visit.faults)


async def test_motion_is_reduced_by_the_setting_of_the_browser(visit: Visit, shop: Shop) -> None:
    page = await visit.open()
    await page.emulate_media(reduced_motion="reduce")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    moving = await page.evaluate(
        "document.getAnimations().filter(each => (each.effect?.getTiming().duration ?? 0) > 1).length"
    )
    assert moving == 0
