"""Asks the user's throttle how long to pause before the next claims, and pauses so long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.core import defaults
from treadle.worker.state import WorkerState


class Throttler:
    """paused  called with the seconds of each pause"""

    UNASKED = 1e9  # s of pause until the throttle was asked for the first time

    def __init__(
        self, state: WorkerState, throttle: Callable[[], Awaitable[Any]], paused: Callable[[float], None]
    ) -> None:
        self._state, self._throttle, self._paused = state, throttle, paused

    async def run(self, answered: Callable[[str], None]) -> None:
        state = self._state
        while True:
            try:
                state.pause = max(0.0, float(await self._throttle() or 0.0))
                state.pause_ends = state.loop.time() + state.pause
                answered("throttle")
            except BaseException:
                state.pause = 0.0  # a throttle that is broken throttles nothing
                state.wake.set()
                raise
            state.wake.set()  # to claim again, or to withdraw the ask that stands
            self._paused(state.pause)
            await asyncio.sleep(state.pause or defaults.THROTTLE_EVERY)
