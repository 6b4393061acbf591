"""The only place beside the storages that reads the time; everything else is told.

Without it a test could not stop time, and a worker whose clock is wrong would decide something.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since 1970, UTC. The storage's own decides; a test hands in one that it moves by hand."""

wall: Clock = time.time
monotonic: Clock = time.monotonic


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as an aware datetime in UTC. Raises ValueError, OverflowError or OSError beyond its years."""
    return datetime.fromtimestamp(seconds, UTC)


def moment_text(seconds: float) -> str:
    """A moment for people. Of one that no calendar has, which a row may hold all the same, the seconds."""
    try:
        return f"{moment(seconds):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s after 1970"
