"""Calls the user's throttle, and pauses the claims for the seconds that it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.core import defaults
from treadle.worker.state import WorkerState


class Throttler:
    """The loop of a worker with a throttle."""

    UNASKED = 1e9  # s of pause before the first call of the throttle

    def __init__(self, state: WorkerState, throttle: Callable[[], Awaitable[Any]]) -> None:
        self._state, self._throttle = state, throttle

    async def run(self, answered: Callable[[str], None]) -> None:
        state = self._state
        while True:
            try:
                seconds = min(max(0.0, float(await self._throttle() or 0.0)), defaults.MAX_DELAY)
                answered("throttle")
            except BaseException:
                state.pause_for(0.0)  # a broken throttle pauses nothing
                raise
            state.pause_for(seconds)
            state.outlasted_by(seconds)
            await asyncio.sleep(state.pause or defaults.THROTTLE_EVERY)
