"""Signing in and out, links that work once, and what each kind of token sees."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit
from treadle.server import Settings, Token
from treadle.server.auth.link import Link
from treadle.server.auth.tokens import digest

pytestmark = pytest.mark.slow


def token(name: str, *scopes: str, **more: object) -> Token:
    return Token(name=name, digest=digest(f"trd_{name}"), scopes=scopes, **more)  # type: ignore[arg-type]


TOKENS: Final = (
    token("operator", "read", "operate", "enqueue"),
    token("reader", "read"),
    token("mailer", "read", "operate", queues=("mail",)),
    token("discreet", "read", payloads=False),
    token("sender", "enqueue"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    settings = Settings(tokens=TOKENS, link=Link(("read", "operate")))
    async with Shop(tmp_path_factory.mktemp("signin"), settings) as shop:
        await shop.fill()
        yield shop


async def sign_in(visit: Visit, name: str, path: str = "") -> Page:
    """Sign in by the form."""
    visit.allow("status of 401")  # the question whether somebody is signed in
    page = await visit.open(path)
    await page.get_by_label("Token").fill(f"trd_{name}")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    return page


async def test_a_wrong_token_then_the_right_one_then_out(visit: Visit, shop: Shop) -> None:
    visit.allow("status of 401")
    page = await visit.open("jobs")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Treadle")
    assert await visit.axe() == []
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("main")).to_contain_text("Paste a token")
    await page.get_by_label("Token").fill("trd_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("main")).to_contain_text("not known")
    await page.get_by_label("Token").fill("trd_operator")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    await expect(page.get_by_role("row").filter(has_text="shop.").first).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Treadle")
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Treadle")


async def test_scripts_cannot_read_the_session_and_nothing_is_kept_in_the_page(visit: Visit, shop: Shop) -> None:
    page = await sign_in(visit, "operator")
    (cookie,) = await visit.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert "trd_" not in cookie["value"]
    assert await page.evaluate("document.cookie") == ""
    kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
    assert "trd_" not in kept


async def test_a_link_signs_one_browser_in_once_and_leaves_the_address(
    visit: Visit, shop: Shop, browser: Browser
) -> None:
    link = shop.settings.link
    assert link is not None
    visit.allow("status of 401")
    page = await visit.open(f"#k={link.secret}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert link.secret not in page.url
    async with Visit(browser, shop.url) as other:
        other.allow("status of 401")
        again = await other.open(f"#k={link.secret}")
        await expect(again.get_by_role("heading", level=1)).to_have_text("Sign in to Treadle")


async def test_a_session_that_ends_opens_a_dialog_and_keeps_the_page(visit: Visit, shop: Shop) -> None:
    page = await sign_in(visit, "operator", "jobs?queue=images")
    await expect(page.get_by_role("row").filter(has_text="shop.thumbnail").first).to_be_visible()
    await visit.context.clear_cookies()
    await page.get_by_role("link", name="Failed").first.click()
    dialog = page.get_by_role("dialog", name="Your session has ended")
    await dialog.get_by_label("Token").fill("trd_reader")
    await dialog.get_by_role("button", name="Sign in", exact=True).click()
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("row").filter(has_text="shop.thumbnail").first).to_be_visible()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "jobs",
        "jobs/{failed}",
        "jobs/{running}",
        "jobs/{queued}",
        "failures",
        "queues",
        "queues/mail",
        "limits",
        "schedules",
        "schedules/nightly",
        "workflows/{workflow}",
    ],
)
async def test_a_token_that_may_only_read_is_offered_no_act(visit: Visit, shop: Shop, path: str) -> None:
    page = await sign_in(visit, "reader", path.format(**shop.ids))
    await expect(page.locator("main")).to_contain_text(re.compile(r"shop\.|mail|nightly|tenant"))
    acts = re.compile(
        r"^(Retry|Cancel|Delete|Pause|Resume|Run now|Enqueue|Send|Signal|Edit|Remove|Add |Set )", re.IGNORECASE
    )
    await expect(page.get_by_role("button", name=acts)).to_have_count(0)
    await expect(page.get_by_role("checkbox", name=re.compile("^Select"))).to_have_count(0)
    refused = await page.evaluate(
        "async ([root, id]) => (await fetch(`${root}/v1/jobs/${id}/cancel`, {method: 'POST'})).status",
        [shop.url, shop.ids["queued"]],
    )
    visit.allow("status of 403")
    assert refused == 403


async def test_a_token_of_one_queue_sees_no_other(visit: Visit, shop: Shop) -> None:
    page = await sign_in(visit, "mailer", "queues")
    await expect(page.get_by_role("rowheader", name="mail")).to_be_visible()
    for path in ("queues", "jobs", "failures", "workers", "", "workflows"):
        visit.allow("status of 403")
        await visit.open(path)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await expect(page.locator("main")).to_contain_text(re.compile("mail|bound|No ", re.IGNORECASE))
        await expect(page.locator("main")).not_to_contain_text("images")
        await expect(page.locator("main")).not_to_contain_text("print_letter")


async def test_a_token_without_payloads_sees_shapes(visit: Visit, shop: Shop) -> None:
    page = await sign_in(visit, "discreet", f"jobs/{shop.ids['failed']}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("shop.thumbnail")
    await expect(page.locator("main")).to_contain_text("text(")
    await expect(page.locator("main")).to_contain_text("ValueError")
    await expect(page.locator("main")).not_to_contain_text("/img/0.png")
    await visit.open("jobs?task=shop.thumbnail")
    await expect(page.get_by_role("row").filter(has_text="shop.thumbnail").first).to_contain_text("text(")
    await expect(page.locator("main")).not_to_contain_text("/img/")


async def test_a_token_without_the_right_to_read_gets_a_page_that_names_it(visit: Visit, shop: Shop) -> None:
    visit.allow("status of 403")
    page = await sign_in(visit, "sender")
    await expect(page.locator("main")).to_contain_text(re.compile("read", re.IGNORECASE))
