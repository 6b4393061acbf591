"""Starts the browser of the tests: without a profile, without a sandbox of its own, and without any other host."""

from __future__ import annotations

import os

import pytest
from playwright.async_api import Browser, Playwright

from tests.servers.process import VERSIONS
from tools.browser import FLAGS, NoBrowser, browser


async def launched(playwright: Playwright) -> Browser:
    try:
        made = browser()
    except NoBrowser as error:
        pytest.fail(f"no browser for the tests of the dashboard: {error}", pytrace=False)
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR", "HOME")}
    if made.libraries is not None:
        env |= {"LD_LIBRARY_PATH": str(made.libraries), "FONTCONFIG_PATH": str(made.fonts)}
    found = await playwright.chromium.launch(
        executable_path=str(made.program), args=list(FLAGS), env={**env, "LANG": "C.UTF-8"}, chromium_sandbox=False
    )
    VERSIONS.add(f"Chromium {found.version}")
    return found
