"""A clock that stands still until it is told to move. Without it tests would sleep, and fail on slow machines."""

from __future__ import annotations


class HandClock:
    """Hand it to a storage as its clock: `HandClock()` reads 1,700,000,000 until `advance` is called."""

    def __init__(self, moment: float = 1_700_000_000.0) -> None:
        self.moment = moment

    def __call__(self) -> float:
        return self.moment

    def advance(self, seconds: float) -> float:
        """Move it on (or back, as real clocks do at times); answers the new moment."""
        self.moment += seconds
        return self.moment

    def __repr__(self) -> str:
        return f"HandClock({self.moment!r})"
