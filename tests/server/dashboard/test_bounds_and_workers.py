"""Bounded queues on the pages of limits and queues, and the labels and resources of a worker on its page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit
from tests.waiting import until
from treadle import Limit, Worker

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("bounds")) as shop:
        yield shop


async def press(page: Page, button: str) -> None:
    await page.get_by_role("dialog").get_by_role("button", name=button).click()


async def rule(shop: Shop, key: str) -> Limit | None:
    return next((use.rule for use in await shop.app.limits.list() if use.key == key), None)


async def test_the_bound_of_a_queue_is_set_shown_and_removed(visit: Visit, shop: Shop) -> None:
    await shop.app.enqueue([shop.task("print_letter").job("Ada", n) for n in range(3)])
    page = await visit.open("queues/letters")
    await page.get_by_role("button", name="Set a limit").click()
    dialog = page.get_by_role("dialog")
    await press(page, "Set the limit")
    await expect(dialog).to_contain_text("Give slots, starts or waiting jobs.")
    await dialog.get_by_label("Waiting jobs").fill("2.5")
    await press(page, "Set the limit")
    field = dialog.get_by_label("Waiting jobs")
    await expect(field).to_have_accessible_description(re.compile("Expected a whole number, found 2.5."))
    await expect(dialog.get_by_label("Slots")).not_to_have_attribute("aria-invalid", "true")
    await dialog.get_by_label("Waiting jobs").fill("3")
    await dialog.get_by_label("When the queue is full").select_option("drop_oldest")
    await press(page, "Set the limit")
    await expect(dialog).to_have_count(0)
    found = await until(lambda: rule(shop, "queue:letters"), "the limit is set")
    assert (found.max_waiting, found.when_full, found.slots) == (3, "drop_oldest", None)
    main = page.locator("main")
    await expect(main).to_contain_text("3 of 3 jobs wait to be started.")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="queue:letters"))
    await expect(row).to_contain_text("3 waiting, then drop the oldest")
    await expect(row).to_contain_text("full")
    await visit.open("limits")
    await expect(row).to_contain_text("full")
    assert await visit.axe() == []

    await row.get_by_role("button", name="Edit queue:letters").click()
    await expect(dialog.get_by_label("Waiting jobs")).to_have_value("3")
    await dialog.get_by_label("Waiting jobs").fill("")
    await dialog.get_by_label("Slots").fill("4")
    await press(page, "Set the limit")
    await expect(row).to_contain_text("4 slots")
    await expect(row).not_to_contain_text("waiting")
    await expect(row).to_contain_text("open")
    found = await rule(shop, "queue:letters")
    assert found is not None
    assert (found.max_waiting, found.slots) == (None, 4)
    await shop.app.limits.set(Limit("queue:letters"))


async def test_the_bound_of_all_queues_is_on_the_page_of_a_queue(visit: Visit, shop: Shop) -> None:
    await shop.app.limits.set(Limit("queue", max_waiting=2))
    page = await visit.open("queues/letters")
    panel = page.get_by_role("region", name="Limit").or_(page.locator("section").filter(has_text="Limit"))
    await expect(panel.last).to_contain_text("2 waiting, then refuse")
    await expect(panel.last).to_contain_text("full")
    await shop.app.limits.set(Limit("queue"))


async def test_the_labels_and_resources_of_a_worker_are_on_its_page(visit: Visit, shop: Shop) -> None:
    places = {"labels": {"gpu": "a100"}, "resources": {"memory_mb": 8192}}
    async with Worker(shop.app, concurrency=2, queues={"paper": 1}, name="press", **places):
        page = await visit.open("workers/press")
        facts = page.locator("main")
        await expect(facts).to_contain_text("gpu=a100")
        await expect(facts).to_contain_text(re.compile(r"memory_mb\s*0 of 8,192 in use"))
        assert await visit.axe() == []
