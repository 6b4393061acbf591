"""The page in a browser: compressed sizes, first paint, first live figures."""

from __future__ import annotations

import os
import statistics
from typing import Any

from benchmarks.dashboard.figures import Figure
from tools import ui
from tools.browser import FLAGS, browser

TIMES = 5  # visits with a warm browser; the figures are medians
PAINTED = """() => {
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    const own = performance.getEntriesByType("resource").filter(each => each.name.includes("/dashboard/"));
    return {paint: paint.startTime, files: own.map(each => [each.name, each.encodedBodySize])};
}"""


def sizes() -> list[Figure]:
    """What a browser loads, against the bars of the build."""
    return [Figure(each.what, each.bytes / 1000, "KB", each.most / 1000) for each in ui.bars()]


async def visits(url: str) -> list[Figure]:
    """Open the overview several times."""
    from playwright.async_api import async_playwright

    made = browser()
    env = {**os.environ, **({"LD_LIBRARY_PATH": str(made.libraries)} if made.libraries else {})}
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=str(made.program), args=list(FLAGS), env=env, chromium_sandbox=False
        )
        found = [await _visit(chromium, url) for _ in range(TIMES + 1)][1:]
        await chromium.close()
    files = found[0]["files"]
    first = ui.bars()[0]
    loaded = sum(size for name, size in files if name.endswith((".js", ".css")))
    return [
        Figure("first page in a browser: scripts and styles", loaded / 1000, "KB", first.most / 1000),
        Figure("first contentful paint, warm browser", statistics.median(each["paint"] for each in found), "ms", 300),
        Figure("first live figures", statistics.median(each["live"] for each in found), "ms", 1_000),
        Figure("files of the first page", len(files), "files"),
    ]


async def _visit(chromium: Any, url: str) -> dict[str, Any]:
    context = await chromium.new_context(locale="en-US")
    page = await context.new_page()
    await page.goto(f"{url}/dashboard/")
    await page.get_by_role("button", name="Live").wait_for()
    live = await page.evaluate("performance.now()")
    found: dict[str, Any] = await page.evaluate(PAINTED)
    await context.close()
    return {**found, "live": live}
