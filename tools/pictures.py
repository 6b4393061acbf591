"""Takes the pictures of the dashboard in docs/pictures/: `python3 dev.py pictures`.

It runs the shop of `treadle demo --dashboard` with fixed chances, waits until its charts have some minutes to show, and
visits four pages in light and dark. The times of the jobs are real, so no two pictures are equal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import Any, Final, Literal

from playwright.async_api import Browser, Page, async_playwright

from tools import node
from tools.browser import FLAGS, NoBrowser, browser

PICTURES: Final = node.ROOT / "docs/pictures"
SIZE: Final = {"width": 1280, "height": 820}
MOST: Final = 150_000  # bytes of a picture
MINUTES: Final = 12.0  # the overview shows the last 15
SEED: Final = 11
SETTLED: Final = 2_000  # ms until charts and live figures are there
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
SHOP: Final = f"""
import sys
from treadle.cli.demo import shop
from treadle.cli.root import run
shop.chance.seed({SEED})
sys.exit(run(["demo", "--dashboard", "--no-open", "--port", "0", "--url", sys.argv[1]]))
"""


@contextlib.contextmanager
def running_shop() -> Iterator[str]:
    """A shop in a process and a folder of its own -> the address of its server."""
    with tempfile.TemporaryDirectory(prefix="treadle-pictures-") as folder:
        url = f"sqlite:///{folder}/shop.db"
        process = subprocess.Popen(
            [sys.executable, "-c", SHOP, url], stderr=subprocess.PIPE, text=True, env={**os.environ, "TREADLE_URL": url}
        )
        assert process.stderr is not None
        try:
            lines = (re.search(r"(http://\S+)/dashboard/", line) for line in process.stderr)
            address = next((found[1] for found in lines if found), None)
            if address is None:
                raise RuntimeError(f"the shop did not start: exit code {process.wait()}")
            yield address
        finally:
            process.terminate()
            process.communicate()


def answer(url: str, path: str) -> Any:
    """The answer of the shop's API."""
    with urllib.request.urlopen(f"{url}/v1/{path}") as found:
        return json.load(found)


def pages(url: str) -> dict[str, str]:
    """The path of each picture's page: a job with several failed attempts, and the largest of the newest workflows."""
    [job] = answer(url, "jobs?state=failed&task=shop.send_mail&limit=1")["jobs"]
    workflow = max(answer(url, "workflows?limit=30")["workflows"], key=lambda each: each["jobs"])
    return {
        "overview": "",
        "job": f"jobs/{job['id']}",
        "workflow": f"workflows/{workflow['id']}",
        "failures": "failures",
    }


async def take(url: str) -> None:
    """Take all pictures of a shop. Raises RuntimeError for one that is too large."""
    made = browser()
    env: dict[str, str | float | bool] = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
    }
    if made.libraries is not None:
        env |= {"LD_LIBRARY_PATH": str(made.libraries), "FONTCONFIG_PATH": str(made.fonts)}
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=str(made.program), args=list(FLAGS), env=env, chromium_sandbox=False
        )
        found = pages(url)
        for theme in THEMES:
            await _visit(chromium, url, found, theme)
        await chromium.close()


async def _visit(chromium: Browser, url: str, found: dict[str, str], theme: Literal["light", "dark"]) -> None:
    context = await chromium.new_context(
        viewport={"width": SIZE["width"], "height": SIZE["height"]},
        locale="en-GB",
        timezone_id="UTC",
        color_scheme=theme,
        reduced_motion="reduce",
    )
    page = await context.new_page()
    for name, path in found.items():
        await page.goto(f"{url}/dashboard/{path}")
        await _prepare(page, name)
        await page.wait_for_timeout(SETTLED)
        data = await page.screenshot(path=PICTURES / f"{name}-{theme}.png")
        if len(data) > MOST:
            raise RuntimeError(f"{name}-{theme}.png has {len(data):,} bytes, and at most {MOST:,} belong into the docs")
        print(f"docs/pictures/{name}-{theme}.png: {len(data) / 1000:.0f} KB")
    await context.close()


async def _prepare(page: Page, name: str) -> None:
    """Show what the picture is about."""
    if name == "overview":
        await page.get_by_text("15 min", exact=True).click()
    if name == "job" and await (logs := page.get_by_role("button", name=re.compile("log line"))).count():
        await logs.first.click()


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the pictures of the dashboard in docs/pictures/.")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"minutes of the shop first [default: {MINUTES:g}]"
    )
    parser.add_argument("--url", help="the server of a shop that is running; it is not waited for")
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    try:
        if given.url is not None:
            asyncio.run(take(given.url.rstrip("/")))
            return 0
        with running_shop() as url:
            print(f"a shop for {given.minutes:g} minutes at {url}/dashboard/", flush=True)
            asyncio.run(asyncio.sleep(given.minutes * 60))
            asyncio.run(take(url))
    except NoBrowser as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
