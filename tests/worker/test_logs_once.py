"""`treadle worker` prints each line of log once, also if a logger below the root has a handler for the terminal."""

from __future__ import annotations

import logging
import sys

import pytest

from treadle.worker import logs
from treadle_testkit.shows import shows


@shows("A line that the program prints to the terminal itself, as Django does with DEBUG, is not printed again")
def test_each_line_is_printed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root, shop = logging.getLogger(), logging.getLogger("shop_once")
    monkeypatch.setattr(root, "handlers", [])
    own = logging.StreamHandler(sys.stderr)
    own.setLevel("WARNING")
    monkeypatch.setattr(shop, "handlers", [own])
    logs.set_up("w#1", "info", as_json=False)
    monkeypatch.setattr(root, "level", root.level)
    inner = logging.getLogger("shop_once.tasks")
    inner.warning("by both")
    inner.info("too low for its own handler")
    own.addFilter(lambda record: False)
    inner.warning("filtered out there")
    logging.getLogger("another").info("of another logger")
    printed = capsys.readouterr().err
    for text in ("by both", "too low for its own", "filtered out there", "of another logger"):
        assert printed.count(text) == 1, printed
