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
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final, Literal

from playwright.async_api import Browser, Page, Route, async_playwright

from tools import node
from tools.browser import FLAGS, NoBrowser, browser

PICTURES: Final = node.ROOT / "docs/pictures"
SIZE: Final = {"width": 1280, "height": 820}
MOST: Final = 150_000  # bytes of a picture
MINUTES: Final = 16.0  # the overview shows the last 15
URL: Final = "sqlite:///shop.db"  # in the folder of the shop; the pages show it without the path of that folder
PATIENCE: Final = 60.0  # s until a workflow has jobs in several states
SEED: Final = 11
SETTLED: Final = 2_000  # ms until charts and live figures are there
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
SHOP: Final = f"""
import sys
from treadle.contrib.demo import shop
from treadle.cli.root import run
shop.chance.seed({SEED})
sys.exit(run(["demo", "--dashboard", "--no-open", "--port", "0", "--url", sys.argv[1]]))
"""


@contextlib.contextmanager
def running_shop() -> Iterator[str]:
    """A shop in a process and a folder of its own -> the address of its server."""
    with tempfile.TemporaryDirectory(prefix="treadle-pictures-") as folder:
        env = {**os.environ, "TREADLE_URL": URL}
        process = subprocess.Popen(
            [sys.executable, "-c", SHOP, URL], cwd=folder, stderr=subprocess.PIPE, text=True, env=env
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


def answer(url: str, path: str, body: object = None) -> Any:
    """The answer of the shop's API."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/{path}", None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as found:
        return json.load(found)


def pages(url: str) -> dict[str, str]:
    """The path of each picture's page: a job with several failed attempts, and a workflow that runs."""
    [job] = answer(url, "jobs?state=failed&task=shop.send_mail&limit=1")["jobs"]
    return {
        "overview": "",
        "job": f"jobs/{job['id']}",
        "failures": "failures",
        "workflow": f"workflows/{running_workflow(url)}",
    }


def running_workflow(url: str) -> str:
    """Start a workflow whose branches run for some seconds -> its id, once one branch has ended and another one runs.
    Raises RuntimeError if it does not come to that."""
    id = answer(url, "jobs", {"task": "shop.release", "args": ["the-loom"]})["id"]
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        states = [node["state"] for node in answer(url, f"workflows/{id}/graph")["nodes"]]
        if len(states) > 4 and {"running", "succeeded", "waiting"} <= set(states):
            return str(id)
        time.sleep(0.2)
    raise RuntimeError(f"the workflow {id} did not have running, ended and waiting jobs within {PATIENCE:g} s")


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
        for theme in THEMES:
            await _visit(chromium, url, pages(url), theme)
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
    await page.route("**/v1/me", _without_path)
    for name, path in found.items():
        await page.goto(f"{url}/dashboard/{path}")
        await _prepare(page, name)
        await page.wait_for_timeout(SETTLED)
        data = await page.screenshot(path=PICTURES / f"{name}-{theme}.png")
        if len(data) > MOST:
            raise RuntimeError(f"{name}-{theme}.png has {len(data):,} bytes, and at most {MOST:,} belong into the docs")
        print(f"docs/pictures/{name}-{theme}.png: {len(data) / 1000:.0f} KB")
    await context.close()


async def _without_path(route: Route) -> None:
    """The caller and the server, whose storage is in a folder of this machine."""
    found = await (await route.fetch()).json()
    await route.fulfill(json={**found, "storage": URL})


async def _prepare(page: Page, name: str) -> None:
    """Show what the picture is about."""
    if name == "overview":
        await page.get_by_text("15 min", exact=True).click()


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
