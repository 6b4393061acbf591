"""Send again: the new job has the arguments and options of the old one, or the page says why it cannot have them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit
from treadle import App, Retry
from treadle.server import Serving, Settings, make_site
from treadle.server.dashboard import OPEN_PATHS, dashboard_routes
from treadle.storage.capabilities import whole_row

pytestmark = pytest.mark.slow

LARGE = "film-" + "x" * 5_000  # more than the shop keeps in a row


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs") / "store"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory, blobs: Path) -> AsyncIterator[Shop]:
    """A shop with a blob store."""
    async with Shop(tmp_path_factory.mktemp("again"), blobs=blobs, offload=2_000) as shop:
        yield shop


async def sent(page: Page, shop: Shop) -> Any:
    """Press the button of the dialog -> the new job, as `NewJob` with its whole payload."""
    async with page.expect_response(lambda answer: answer.request.method == "POST") as posted:
        await page.get_by_role("dialog").get_by_role("button", name="Enqueue").click()
    answer = await (await posted.value).json()
    return (await whole_row(shop.app.storage, await shop.row(answer["id"]))).job


async def test_a_running_job_with_large_arguments(visit: Visit, shop: Shop, blobs: Path) -> None:
    job = await shop.send("encode", LARGE)
    await shop.until(job.id, "running")
    page = await visit.open(f"jobs/{job.id}")
    await expect(page.get_by_label("Progress").first).to_contain_text("half of the film")  # a row of the stream
    await expect(page.locator("main")).not_to_contain_text("in the blob store")
    await expect(page.locator("main")).to_contain_text(f"treadle jobs show {job.id} --app shop.py:app")
    await page.get_by_role("button", name="Send again").click()
    await expect(page.get_by_role("dialog").get_by_label("file")).to_have_value(LARGE)
    await sent(page, shop)
    found = [await whole_row(shop.app.storage, row) for row in (await shop.app.jobs.list(task="shop.encode")).records]
    assert [LARGE in row.job.payload for row in found] == [True, True]

    await asyncio.to_thread(blobs.rename, blobs.with_name("away"))
    await page.reload()
    await expect(page.locator("main")).to_contain_text("their text is in the blob store, which did not return it")
    await expect(page.get_by_role("button", name="Send again")).to_be_disabled()
    assert await visit.axe() == []
    await asyncio.to_thread(blobs.with_name("away").rename, blobs)
    shop.released.set()


async def test_a_server_without_the_app_keeps_the_options(browser: Browser, shop: Shop) -> None:
    task = shop.app.stub("shop.send_mail", queue="letters", limits=["smtp", "tenant:7"], retry=Retry(attempts=9))
    job = await task.options(timeout=30, headers={"trace": "abc"}, key="once", labels=["vip"], lane="acme").enqueue(
        "ada"
    )
    app = App(shop.app.url)
    site = make_site(app, Settings(), [dashboard_routes()], open_paths=OPEN_PATHS)
    async with (
        app,
        Serving(site, on_stop=site.state.waiting.stop) as serving,
        Visit(browser, serving.url) as visit,
    ):
        page = await visit.open(f"jobs/{job.id}")
        await expect(page.locator("main")).to_contain_text(f"treadle jobs cancel {job.id} --url 'sqlite:///")
        await page.get_by_role("button", name="Send again").click()
        words = page.get_by_test_id("copied")
        await expect(words).to_contain_text("limits (smtp, tenant:7), retry policy, timeout, headers")
        await expect(words).to_contain_text("It does not have its key.")
        await page.get_by_role("dialog").get_by_text("Options").click()
        await page.get_by_role("dialog").get_by_label("Labels").fill("vip, again")
        new = await sent(page, shop)
    old = (await shop.row(job.id)).job
    assert (old.key, new.key) == ("shop.send_mail once", None)
    assert new.labels == ("vip", "again")
    same = ("task", "payload", "queue", "limits", "retry", "headers", "lane", "keep", "priority")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]


async def test_the_stars_of_a_hidden_value_are_not_sent(visit: Visit, shop: Shop) -> None:
    job = await shop.app.stub("any", queue="letters").enqueue({"to": "ada", "password": "hunter2"})
    page = await visit.open(f"jobs/{job.id}")
    await page.get_by_role("button", name="Send again").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(re.compile(r"hides some values of this job"))
    await dialog.get_by_role("button", name="Enqueue").click()
    await expect(dialog).to_contain_text("Replace ***: the server hides this value.")
    await dialog.get_by_label("Arguments by position").fill('[{"to": "ada", "password": "new"}]')
    assert "new" in (await sent(page, shop)).payload
