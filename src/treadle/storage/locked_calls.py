"""Repeats a call while another open transaction holds what it needs.

A storage gives such a call up early, so that it holds nothing for others; nothing of it is stored. So it may be
repeated, and waits alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from treadle.core.errors import Locked

T = TypeVar("T")

PATIENCE: Final = 5.0  # s to repeat a call that another transaction holds up; then it raises Locked
PAUSE: Final = 0.02  # s between two tries


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The result of the call, repeated until PATIENCE is over. Raises Locked."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    while True:
        try:
            return await call()
        except Locked:
            if loop.time() > until:
                raise
        await asyncio.sleep(PAUSE)
