"""The charts of throughput and times: what is not known is a gap."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with Shop(tmp_path_factory.mktemp("charts"), works=False) as shop:
        await shop.send("print_letter", "Ada", 1)
        yield shop


async def test_the_time_before_the_first_figure_is_a_gap(visit: Visit, shop: Shop) -> None:
    """Ten minutes, of which the last four have figures."""
    start, step = 1_700_000_000, 60
    at = [start + step * n for n in range(10)]
    some = [0] * 7 + [120, 60, 0]
    late = [None] * 7 + [0.1, 0.2, None]
    times = {"p50": late, "p95": late, "p99": late}
    counts = {"succeeded": some, "failed": [0] * 10, "retried": [0] * 10, "other": [0] * 10}
    answer = {"from": start, "to": start + 600, "step": step, "at": at, **counts, "run": times, "wait": times}

    async def fulfil(route: Route) -> None:
        await route.fulfill(json={**answer, "sampled": 3, "since": start + 360})

    await visit.page.route(re.compile(r"/v1/metrics"), fulfil)
    page = await visit.open()
    chart = page.get_by_role("figure").filter(has_text="Throughput")
    await chart.get_by_text("Show as table").click()
    rows = chart.get_by_role("row")
    await expect(rows).to_have_count(11)
    texts = [re.findall(r"–|[0-9.]+/s", text) for text in reversed((await rows.all_inner_texts())[1:])]
    assert texts[:6] == [["–", "–", "–"]] * 6
    assert texts[6:] == [["0/s"] * 3, ["2/s", "0/s", "0/s"], ["1/s", "0/s", "0/s"], ["0/s"] * 3]
    path = await chart.locator("path.curve").first.get_attribute("d")
    assert path is not None
    assert path.count("M") == 1
    assert path.count("L") == 3
