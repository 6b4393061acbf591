"""The clocks, as functions that a caller can replace.

Only storages decide by the wall clock: a worker whose clock is wrong must not change what happens to a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Returns seconds since 1970, UTC. The storage's clock decides; a test can pass one that it moves itself."""

wall: Clock = time.time
monotonic: Clock = time.monotonic


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as an aware datetime in UTC. Raises ValueError, OverflowError or OSError outside its years."""
    return datetime.fromtimestamp(seconds, UTC)


def moment_text(seconds: float) -> str:
    """An instant as text. If no datetime can hold it, which is possible for a stored row, the number of seconds."""
    try:
        return f"{moment(seconds):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s after 1970"
