"""How fast a fleet of workers drains a storage, from the first ended job to the last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

CUT = 20.0  # seconds; after that the rate is that of the jobs done until then


async def drained(done: Callable[[], Awaitable[int]], jobs: int, look: float) -> float:
    """Jobs per second. `done` returns the number of jobs done and is polled every `look` seconds. If more than half of
    them are done at the first look, the time counts from the call."""
    start = time.monotonic()
    first, begun = 0, 0.0
    while True:
        await asyncio.sleep(look)
        count, now = await done(), time.monotonic()
        if count and not begun:
            first, begun = (count, now) if count <= jobs / 2 else (0, start)
        if now > start + CUT or (begun and count >= jobs):
            return (count - first) / max(now - begun, look)
