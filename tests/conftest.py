"""Settings of the whole run: the event loop (`TEST_LOOP=uvloop`, `TEST_EAGER=1`), the end of tests that hang, and the
report.

The report lists the servers that were used, and the code blocks of the documentation that did not run.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import pytest

from tests import left_open
from tests.fixtures import app, clock, spy, storage, swept, told
from tests.servers.process import VERSIONS

__all__ = [
    "app",
    "clock",
    "spy",
    "storage",
    "swept",
    "told",
]  # fixtures: an app on each storage, with a clock that tests move by hand

MANY = 300  # reports after which the run shows where its time went
HUNG = 240.0  # seconds after which a test's process is ended; twice `timeout`, after which a tear-down may still run
_stderr = pytest.StashKey[int]()

if os.environ.get("TEST_LOOP") == "uvloop":  # the loop of `treadle worker`, where it is installed

    def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        import uvloop

        return {"uvloop": uvloop.new_event_loop}

elif os.environ.get("TEST_EAGER"):  # for programs that set `asyncio.eager_task_factory`; Python 3.12 or later

    def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        def new_event_loop() -> asyncio.AbstractEventLoop:
            loop = asyncio.new_event_loop()
            loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
            return loop

        return {"eager": new_event_loop}


logging.getLogger("treadle.risks").setLevel(logging.CRITICAL)  # the servers of tests write nothing to disk


def pytest_configure(config: pytest.Config) -> None:
    left_open.watch()
    config.stash[_stderr] = os.dup(2)  # duplicated before pytest replaces it by the file that captures what tests print


@pytest.fixture(autouse=True)
def _no_log_handler_is_left() -> Iterator[None]:
    with left_open.no_log_handler():
        yield


def _watch(item: pytest.Item) -> None:
    """End this process, with the stacks of all its threads, unless the test ends in time. Nothing else in a process can
    end a tear-down that waits for ever. The run reports the test and continues in a new process."""
    if not item.get_closest_marker("soak"):
        faulthandler.dump_traceback_later(HUNG, exit=True, file=item.config.stash[_stderr])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _watch(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    if isinstance(node, pytest.Item):
        _watch(node)  # pytest's own plugin has just cancelled it


def pytest_collection_finish() -> None:
    """Objects made while collecting exist until the end. A full garbage collection in a test need not visit them: 0.2 s
    each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of a run in several processes has ended: add its servers to the run's."""
    VERSIONS.update(getattr(node, "workeroutput", {}).get("servers", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = sorted(VERSIONS)


def _seconds_by_folder(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Seconds spent in set-ups, tests and tear-downs, by the folder of the test."""
    seconds: Counter[str] = Counter()
    for report in reports:
        parts = report.nodeid.partition("::")[0].split("/")
        seconds[parts[1] if len(parts) > 2 else parts[-1]] += report.duration
    return seconds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    everything = [each for of in terminalreporter.stats.values() for each in of if isinstance(each, pytest.TestReport)]
    if len(everything) > MANY:
        most = _seconds_by_folder(everything).most_common()
        terminalreporter.line("seconds by folder: " + ", ".join(f"{folder} {time:.0f}" for folder, time in most))
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [value for report in reports for name, value in report.user_properties if name == "code block not run"]
    if found:
        terminalreporter.section(f"code blocks not run: {len(found)} (they compile)")
        for line in sorted({str(value) for value in found}):
            terminalreporter.line(line)
    for version in sorted(VERSIONS):
        terminalreporter.line(f"server: {version}")
