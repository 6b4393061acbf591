"""How long commits take here, and whether the loop may make the next one itself.

Without it a job on a durable file would take two hand-overs to a thread, each dearer than the sync of a fast disk.
"""

from __future__ import annotations

from typing import Final

FEW: Final = 32  # jobs of a transaction the loop commits itself; with more, it has better things to do meanwhile
FAST: Final = 0.000_5  # s that a commit may take to count as fast
KNOWN: Final = 20  # fast commits in a row until the loop makes them
SHY: Final = 500  # fast commits until then, once one held the loop for longer than that


class CommitLatency:
    """The commits that sync. A disk that was slow once is not trusted for a while: the loop is not to be held."""

    def __init__(self) -> None:
        self._left = KNOWN

    def are_fast(self, jobs: int) -> bool:
        """Whether the loop may commit so many jobs itself."""
        return self._left <= 0 and jobs <= FEW

    def took(self, seconds: float, held: bool) -> None:
        """So long did one take; `held`: in the loop."""
        if seconds < FAST:
            self._left -= 1
        else:
            self._left = SHY if held else max(self._left, KNOWN)
