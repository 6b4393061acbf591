"""What concerns the whole run: the event loop (`TEST_LOOP=uvloop`); the closing report also says which servers it was
run against, and which code blocks of the documentation did not run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.process import VERSIONS

if os.environ.get("TEST_LOOP") == "uvloop":  # on which `treadle worker` runs where it is installed

    def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        import uvloop

        return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of a run in several has ended: its servers are the run's."""
    VERSIONS.update(getattr(node, "workeroutput", {}).get("servers", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = sorted(VERSIONS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [value for report in reports for name, value in report.user_properties if name == "code block not run"]
    if found:
        terminalreporter.section(f"code blocks not run: {len(found)} (they compile)")
        for line in sorted({str(value) for value in found}):
            terminalreporter.line(line)
    for version in sorted(VERSIONS):
        terminalreporter.line(f"server: {version}")
