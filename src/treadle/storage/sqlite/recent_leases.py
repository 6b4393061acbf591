"""Remembers the row numbers of recent leases, so that their endings find the rows by number.

By id, an ending would need a list of ids to parse and sort (4,000 instructions of 72,000).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST: Final = 10_000  # row numbers kept; beyond twice as many, the oldest are dropped


class RecentLeases:
    """An entry stays correct, because no number is given to a second row (`enqueue.sql`). An entry of an expired lease
    does no harm: an ending names the version of the row too."""

    def __init__(self) -> None:
        self._young, self._old = dict[str, int](), dict[str, int]()

    def note(self, ids: Iterable[str], seqs: Sequence[int]) -> None:
        if len(self._young) >= MOST:
            self._old, self._young = self._young, {}
        self._young.update(zip(ids, seqs, strict=True))

    def take(self, ids: Iterable[str]) -> list[int] | None:
        """The numbers of all these rows, which are then forgotten; None if one of them is unknown."""
        young, old, found = self._young, self._old, list[int]()
        for id in ids:
            seq = young.pop(id, 0) or old.pop(id, 0)
            if not seq:
                return None
            found.append(seq)
        return found

    def forget(self) -> None:
        self._young, self._old = {}, {}
