"""The sign-in link of `treadle dashboard --tokens` reaches no command line, which all users of the machine can read."""

from __future__ import annotations

import asyncio
import os
import threading
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from treadle.cli.dashboard import Page
from treadle.server.auth.link import Link


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[list[str], threading.Event]:
    found, event = list[str](), threading.Event()

    def take(url: str, *_: Any) -> bool:
        found.append(url)
        event.set()
        return True

    monkeypatch.setattr(webbrowser, "open", take)
    monkeypatch.setenv("BROWSER", "x")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return found, event


SERVING: Any = SimpleNamespace(url="http://127.0.0.1:7373")


@pytest.mark.parametrize("is_used", [True, False])
async def test_the_browser_is_given_a_file_that_only_this_user_reads(
    opened: tuple[list[str], threading.Event], tmp_path: Path, is_used: bool
) -> None:
    urls, event = opened
    link = Link(("read",))
    page = Page(SERVING, link, True)
    await page.__aenter__()
    assert event.wait(30)
    [url] = urls
    assert link.secret not in url
    file = Path(unquote(urlsplit(url).path))
    assert [os.stat(each).st_mode & 0o777 for each in (file, file.parent)] == [0o600, 0o700]
    assert link.take("wrong") is None
    text = await asyncio.to_thread(file.read_text)
    assert f"http://127.0.0.1:7373/dashboard/#k={link.secret}" in text
    if is_used:
        assert link.take(link.secret) is link.token
    else:
        await page.__aexit__()
    assert os.listdir(tmp_path) == []


async def test_without_tokens_the_dashboard_itself_is_opened(
    opened: tuple[list[str], threading.Event], tmp_path: Path
) -> None:
    urls, event = opened
    await Page(SERVING, None, True).__aenter__()
    assert event.wait(30)
    assert urls == ["http://127.0.0.1:7373/dashboard/"]
    assert os.listdir(tmp_path) == []
