"""Ways to run plain functions in threads for an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

Answer = tuple[Any, BaseException | None]

SHORT: Final = 0.000_05  # s of sleep in which a thread that waits for the GIL gets it
STARTING: Final = 0.05  # s to wait at most for such threads, and at least this many times SHORT:
TRIES: Final = 20

starting: Final = set[object]()
"""The calls for which a thread is free, but has not begun: it waits for the GIL."""


def let_threads_start() -> None:
    """Give the GIL to threads that wait for it to begin a call. Call this before the loop takes a lock that other
    processes wait for: such a thread gets the GIL at the next system call of the loop, and may keep it for as long as a
    regular expression takes. If a thread does not begin in this time, no later call waits for it: after a fork, or in a
    pool that was closed, it does not exist."""
    until, tries = time.perf_counter() + STARTING, 0
    while starting and (tries < TRIES or time.perf_counter() < until):
        time.sleep(SHORT)
        tries += 1
    if starting:
        starting.clear()


class Threads(Protocol):
    """Calls plain functions in threads. The future's result is (value, None) or (None, exception); it never raises."""

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]: ...
