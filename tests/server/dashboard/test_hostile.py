"""Contents of jobs are shown as text: markup, directions of writing, control characters, large and deep values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit

pytestmark = pytest.mark.slow

MARK: Final = '<img src=x onerror="window.hostile=1"><script>window.hostile=2</script><svg/onload=window.hostile=3>'
NAME: Final = '"><img-onerror=window.hostile=1>'  # names have no spaces; one with a slash has no path in the API
TURNED: Final = "abc\u202egnp.exe\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u200b\ufeff zero"
CONTROL: Final = "a\x01b\x1b[31mred\x7f\r\nnext \ud83d\ude00 e\u0301"


def deep(levels: int) -> Any:
    value: Any = MARK
    for _ in range(levels):
        value = [value]
    return value


VALUES: Final[dict[str, Any]] = {
    "markup": MARK,
    "link": "javascript:window.hostile=4",
    "directions": TURNED,
    "control": CONTROL,
    "deep": deep(90),
    "keys": {MARK: MARK, "__proto__": {"hostile": 1}, "constructor": "x", "": MARK},
    "large": "x" * 200_000 + MARK,
    "wide": {f"key{n}": n for n in range(3_000)},
    "numbers": [1e308, -0.0, 2**53, 12345678901234567890],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("hostile")) as shop:
        broken = shop.app.stub("shop.thumbnail", queue="images", labels=[NAME], headers={"trace": MARK})
        for name, value in VALUES.items():
            job = await broken.enqueue(value, 13)
            await job.ended(30)
            shop.ids[name] = job.id
        named = await shop.app.stub(f"task{NAME}", queue=f"queue{NAME}").enqueue(MARK)
        shop.ids["named"] = named.id
        yield shop


async def harmless(visit: Visit) -> None:
    assert await visit.page.evaluate("window.hostile") is None
    assert await visit.page.evaluate("({}).hostile") is None
    assert await visit.page.locator("main img, main script, main [onload], main [onerror]").count() == 0
    assert await visit.page.locator("a[href^='javascript' i]").count() == 0
    assert await visit.overflow() == []


@pytest.mark.parametrize("name", VALUES)
async def test_a_job_with_hostile_arguments_and_error(visit: Visit, shop: Shop, name: str) -> None:
    page = await visit.open(f"jobs/{shop.ids[name]}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("shop.thumbnail")
    await expect(page.get_by_role("heading", name="Arguments")).to_be_visible()
    await harmless(visit)


@pytest.mark.parametrize(
    "path", ["jobs", "jobs/{named}", "failures", "queues", "", "workflows/{named}", "jobs?q=onerror"]
)
async def test_lists_show_hostile_names_as_text(visit: Visit, shop: Shop, path: str) -> None:
    page = await visit.open(path.format(**shop.ids))
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(page.locator("main")).to_contain_text("onerror=")
    await harmless(visit)


async def test_a_hostile_queue_has_a_page_and_can_be_paused(visit: Visit, shop: Shop) -> None:
    page = await visit.open("queues")
    await page.get_by_role("rowheader").get_by_role("link", name='queue"><img').click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("onerror=")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_role("region", name="Messages")).to_contain_text("paused")
    assert [use.key for use in await shop.app.limits.list() if use.rule.slots == 0] == [f"queue:queue{NAME}"]
    await harmless(visit)


@pytest.mark.parametrize(
    "path",
    [
        "jobs?q=%3Cscript%3E",
        "jobs?status=nonsense",
        "jobs?cursor=nonsense",
        "jobs?queue=%00",
        "%F0%9F%92%A9",
        "jobs/..%2F..%2Fv1%2Fme",
    ],
)
async def test_a_page_at_a_hostile_address_is_harmless(visit: Visit, shop: Shop, path: str) -> None:
    visit.allow("status of 4")
    page = await visit.open(path)
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await harmless(visit)
