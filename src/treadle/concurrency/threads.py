"""The threads that a loop calls plain functions in, as their callers see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

Answer = tuple[Any, BaseException | None]

SHORT: Final = 0.000_05  # s of sleep in which a thread that waits for the GIL gets it
STARTING: Final = 0.05  # s to wait at most for such threads

starting: Final = set[object]()
"""The calls for which a thread is free, but has not begun: it waits for the GIL."""


def let_threads_start() -> None:
    """Give the GIL to threads that wait for it to begin a call. Call this before the loop takes a lock that other
    processes wait for: such a thread gets the GIL at the next system call of the loop, and may keep it for as long as a
    regular expression takes."""
    until = time.perf_counter() + STARTING
    while starting and time.perf_counter() < until:
        time.sleep(SHORT)


class Threads(Protocol):
    """Calls plain functions in threads. The future's result is (value, None) or (None, exception); it never raises."""

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]: ...
