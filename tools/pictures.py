"""Takes the pictures of the dashboard for the README and the guide, from `treadle demo --dashboard` after a while.

python3 dev.py pictures [SECONDS]     default: 90 s of work before the first picture
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tools.browser import FLAGS, NoBrowser, browser

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "docs/pictures"
SIZE: Final = {"width": 1280, "height": 860}
WORK: Final = 90.0  # s until the charts show something
LOADED: Final = 2_000  # ms for charts and tables after the heading

Go = Callable[[Any], None]


def _first_row(page: Any) -> None:
    page.locator("main tbody tr a").first.click()
    page.wait_for_timeout(LOADED)


# name -> address, colours, and what to do before the picture
PICTURES: Final[dict[str, tuple[str, str, Go | None]]] = {
    "overview": (".", "light", None),
    "overview-dark": (".", "dark", None),
    "jobs": ("jobs", "light", None),
    "job": ("jobs?status=failed", "light", _first_row),
    "failures": ("failures", "light", None),
    "workflow": ("workflows", "light", _first_row),
    "schedules": ("schedules", "light", None),
    "limits": ("limits", "light", None),
}


@contextmanager
def demo(seconds: float) -> Iterator[str]:
    """The demo's shop after so many seconds of work -> the address of its dashboard."""
    command = [sys.executable, "-m", "treadle", "demo", "--dashboard", "--no-open", "--port", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        for line in child.stderr:
            if found := re.search(r"the dashboard is at (\S+)", line):
                time.sleep(seconds)
                yield found[1]
                return
        raise SystemExit("the demo did not start")
    finally:
        child.terminate()
        child.communicate()


def take(address: str) -> None:
    """All pictures, with Playwright."""
    from playwright.sync_api import sync_playwright

    made = browser()
    env: dict[str, str | float | bool] = dict(os.environ)
    if made.libraries is not None:
        env |= {"LD_LIBRARY_PATH": str(made.libraries), "FONTCONFIG_PATH": str(made.fonts)}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(made.program), args=list(FLAGS), env=env, chromium_sandbox=False
        )
        for name, (path, scheme, act) in PICTURES.items():
            context = chromium.new_context(
                viewport=SIZE,  # type: ignore[arg-type]
                locale="en-GB",
                color_scheme=scheme,  # type: ignore[arg-type]
                device_scale_factor=2,
            )
            page = context.new_page()
            page.goto(address + path)
            page.get_by_role("heading", level=1).wait_for()
            page.wait_for_timeout(LOADED)
            if act is not None:
                act(page)
            page.screenshot(path=str(FOLDER / f"{name}.png"))
            print(f"docs/pictures/{name}.png", flush=True)
            context.close()
        chromium.close()


def main(words: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    try:
        with demo(float(words[0]) if words else WORK) as address:
            take(address)
    except NoBrowser as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
