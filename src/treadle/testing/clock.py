"""A clock that moves only when a test advances it: tests need not sleep and do not depend on the machine's speed."""

from __future__ import annotations


class HandClock:
    """Pass it to a storage as its clock: `HandClock()` reads 1,700,000,000 until `advance` is called."""

    def __init__(self, moment: float = 1_700_000_000.0) -> None:
        self.moment = moment

    def __call__(self) -> float:
        return self.moment

    def advance(self, seconds: float) -> float:
        """Move the clock forward, or back if `seconds` is negative. Returns the new moment."""
        self.moment += seconds
        return self.moment

    def __repr__(self) -> str:
        return f"HandClock({self.moment!r})"
