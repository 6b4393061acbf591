"""Which requests are done at once, in the caller's turn of the loop, and become a task only if they have to wait.

Without it a call that waits for nothing would pass through a task of its own: three turns of the loop, of which each
costs as much as a statement (90,000 instructions of the 300,000 of a lone enqueue).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

FEW: Final = 32  # jobs' worth of a request that may be done in the turn of the loop in which it is asked
AT_ONCE: Final = 0.001  # s of such requests after which the loop gets its turn
CROWD: Final = 32  # requests that wait for each other, once two came in one turn


class SingleCaller:
    """Who asks: one task, again and again, or several. One is answered at once; several had better wait for the end of
    the turn and share a transaction, 100 of them at five times the rate."""

    def __init__(self) -> None:
        self._last = 0  # the task that asked last
        self._asked = False  # whether one was answered at once in this turn
        self._since = 0.0  # when the first of this turn was
        self._crowd = 0

    def met(self) -> None:
        """Two came together: for a while nobody is alone, or the first of each turn would go by itself."""
        self._crowd = CROWD

    def is_alone(self, loop: asyncio.AbstractEventLoop, weight: int) -> bool:
        """Whether this request may be done at once. Another task's, with the jobs of many: several callers behind it
        have been gathered already."""
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
