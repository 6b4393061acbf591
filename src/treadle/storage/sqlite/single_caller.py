"""Decides which requests are served at once, in the caller's turn of the loop. Others become a task.

A task for every request would cost three turns of the loop, each as much as a statement (90,000 instructions of the
300,000 of a lone enqueue).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

FEW: Final = 32  # jobs' worth of a request that may be served in the turn of its call
AT_ONCE: Final = 0.001  # s of such requests after which the loop gets its turn
CROWD: Final = 32  # requests that are grouped after two came in one turn


class SingleCaller:
    """Detects whether one task makes all requests, one after the other. A single caller is served at once. Several
    callers wait for the end of the turn and share a transaction: 100 of them at five times the rate."""

    def __init__(self) -> None:
        self._last = 0  # the task that made the last request
        self._asked = False  # whether a request was served at once in this turn
        self._since = 0.0  # when the first of this turn was made
        self._crowd = 0

    def met(self) -> None:
        """Two requests came together: group requests for a while, else the first of each turn would be served alone."""
        self._crowd = CROWD

    def is_alone(self, loop: asyncio.AbstractEventLoop, weight: int) -> bool:
        """Whether this request may be served at once. Not the first one of another task with many jobs: that is a batch
        that several callers share already."""
        me, last = id(asyncio.current_task(loop)), self._last
        self._last = me
        if me != last and (self._asked or weight > 1):
            self.met()
        if self._crowd:
            self._crowd -= 1
            return False
        if not self._asked:
            self._asked, self._since = True, time.perf_counter()
            loop.call_soon(self._next_turn)
        return weight <= FEW and time.perf_counter() - self._since < AT_ONCE

    def _next_turn(self) -> None:
        self._asked = False
