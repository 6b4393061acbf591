"""Samples how late an event loop runs its timers: what a job that blocks the loop costs all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

EVERY: Final = 0.5  # s between two samples; one costs 10 us


async def watch_lag(lagged: Callable[[float], None]) -> None:
    """Call `lagged` with the seconds by which each sample was late."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY
        await asyncio.sleep(EVERY)
        lagged(max(0.0, loop.time() - due))
