"""A clock that moves only when a test advances it: tests need not sleep and do not depend on the machine's speed."""

from __future__ import annotations

from datetime import timedelta
from math import isfinite

from treadle.core.errors import BadOption


class HandClock:
    """Pass it to a storage as its clock: `HandClock()` reads 1,700,000,000 until `advance` is called."""

    def __init__(self, moment: float = 1_700_000_000.0) -> None:
        self.moment = moment

    def __call__(self) -> float:
        return self.moment

    def advance(self, seconds: float | timedelta) -> float:
        """Move the clock forward, or back if `seconds` is negative. Returns the new moment."""
        by: object = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not isinstance(by, int | float) or not isfinite(by):  # with a NaN, no job would ever be due
            raise BadOption("advance", f"expected seconds or a timedelta, found {seconds!r}")
        self.moment += by
        return self.moment

    def __repr__(self) -> str:
        return f"HandClock({self.moment!r})"
