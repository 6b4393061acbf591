"""One visit of the dashboard by a browser with a clean profile, and what went wrong during it."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, expect

from tools.browser import browser as made

DESK: Final = {"width": 1280, "height": 860}
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PATIENCE: Final = 20_000  # ms until a condition on a page counts as never true; a busy machine takes seconds

expect.set_options(timeout=PATIENCE)


class Visit:
    """A page and its profile, inside `async with`.

    base     the address of the server, with its prefix
    faults   console messages, errors of scripts, and requests to other origins so far
    """

    def __init__(self, browser: Browser, base: str, **context: Any) -> None:
        self.base, self.faults = base, list[str]()
        self._browser, self._options = browser, context
        self._allowed: list[re.Pattern[str]] = []
        self._origin = "/".join(base.split("/")[:3])

    async def __aenter__(self) -> Self:
        options = {
            "viewport": DESK,
            "locale": "en-US",
            "timezone_id": "Europe/Paris",
            "color_scheme": "light",
            "reduced_motion": "reduce",
        }
        self.context: BrowserContext = await self._browser.new_context(**{**options, **self._options})
        self.context.set_default_timeout(PATIENCE)
        if os.environ.get("TEST_OUT"):
            await self.context.tracing.start(screenshots=True, snapshots=True)
        self.page: Page = await self.context.new_page()
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.faults.append(f"error of a script: {error.error}"))
        self.context.on("request", self._sent)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.context.close()
        left = [each for each in self.faults if not any(allowed.search(each) for allowed in self._allowed)]
        assert not left, "\n".join(left)

    def allow(self, pattern: str) -> None:
        """From now on, a fault that this pattern finds is part of the test: browsers report each status >= 400."""
        self._allowed.append(re.compile(pattern))

    def forgive(self) -> None:
        """The test has failed already: that is the error to show."""
        self.allow("")

    def _said(self, message: ConsoleMessage) -> None:
        self.faults.append(f"console: {message.type}: {message.text} ({message.location.get('url', '')})")

    def _sent(self, request: Request) -> None:
        if not request.url.startswith((f"{self._origin}/", "data:", "blob:")):
            self.faults.append(f"a request to another origin: {request.method} {request.url}")

    # --- acts

    async def open(self, path: str = "") -> Page:
        """Open a page of the dashboard by its address -> the page."""
        await self.page.goto(f"{self.base}/dashboard/{path}")
        return self.page

    async def axe(self, *rules: str) -> list[tuple[str, list[str]]]:
        """The rules of accessibility that the page breaks, each with the first elements that break it. With `rules`,
        only these are checked."""
        if await self.page.evaluate("typeof axe") == "undefined":
            await self.page.evaluate(_axe())
        only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": RULES}
        found = await self.page.evaluate(
            "only => axe.run(document, {runOnly: only, resultTypes: ['violations'], elementRef: false})", only
        )
        return [
            (broken["id"], [f"{node['html'][:120]} {node['failureSummary'][:200]}" for node in broken["nodes"][:3]])
            for broken in found["violations"]
        ]

    async def overflow(self) -> list[str]:
        """The elements that are wider than the window; empty if the page does not scroll sideways."""
        found: list[str] = await self.page.evaluate(
            """() => {
                const width = document.documentElement.clientWidth;
                if (document.documentElement.scrollWidth <= width) return [];
                return [...document.querySelectorAll("body *")]
                    .filter(each => each.getBoundingClientRect().right > width + 1)
                    .slice(0, 5).map(each => each.outerHTML.slice(0, 120));
            }"""
        )
        return found


@functools.cache
def _axe() -> str:
    return made().axe.read_text()


async def keep_artefacts(visit: Visit, name: str) -> None:
    """Keep what a failed test saw: the picture, the document, the console, and the trace if there is one.

    The folder is TEST_OUT, else one in the folder for temporary files.
    """
    stem = _artefact(name)
    try:
        await visit.page.screenshot(path=f"{stem}.png", timeout=5_000)
        _write(f"{stem}.html", await visit.page.content())
        if os.environ.get("TEST_OUT"):
            await visit.context.tracing.stop(path=f"{stem}.trace.zip")
    except Error as error:  # the page is gone
        visit.faults.append(f"no picture: {error}")
    _write(f"{stem}.txt", f"{visit.page.url}\n" + "\n".join(visit.faults))
    print(f"artefacts of the failed test: {stem}.*")


def _artefact(name: str) -> Path:
    """The beginning of the paths of a test's artefacts."""
    folder = Path(os.environ.get("TEST_OUT") or Path(tempfile.gettempdir(), "treadle-browser"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / re.sub(r"\W+", "-", name.rpartition("/")[2]).strip("-")


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)
