"""Measures how long commits take here, and decides whether the loop may make the next one itself.

A commit in a thread costs two hand-overs between threads, which is more than the sync of a fast disk.
"""

from __future__ import annotations

from typing import Final

MAX_JOBS: Final = 32  # jobs in a transaction that the loop commits itself; with more, a thread does
FAST: Final = 0.000_5  # seconds that a fast commit may take
WARMUP: Final = 20  # consecutive fast commits before the loop makes them
BACKOFF: Final = 500  # the same after a commit that held the loop for longer than FAST


class CommitLatency:
    """Watches commits that sync. After one slow commit the disk is not trusted for a while, so as not to hold the
    loop."""

    def __init__(self) -> None:
        self._left = WARMUP

    def are_fast(self, jobs: int) -> bool:
        """Whether the loop may commit this many jobs itself."""
        return self._left <= 0 and jobs <= MAX_JOBS

    def took(self, seconds: float, held: bool) -> None:
        """Note the duration of a commit. `held`: the loop made it."""
        if seconds < FAST:
            self._left -= 1
        else:
            self._left = BACKOFF if held else max(self._left, WARMUP)
