"""Which rows were leased here lately, so that their endings find them by number.

Without it an ending would be looked up by id, in a list of ids to be read and sorted (4,000 instructions of 72,000).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST: Final = 10_000  # of which the numbers are kept; of so many more the last ones


class RecentLeases:
    """Right for as long as it is kept, as no number is given to a second row (`enqueue.sql`). A lease that is lost or
    taken over does no harm: whoever ends it names its version too."""

    def __init__(self) -> None:
        self._young, self._old = dict[str, int](), dict[str, int]()

    def note(self, ids: Iterable[str], seqs: Sequence[int]) -> None:
        if len(self._young) >= MOST:
            self._old, self._young = self._young, {}
        self._young.update(zip(ids, seqs, strict=True))

    def take(self, ids: Iterable[str]) -> list[int] | None:
        """The numbers of all these, which are forgotten; None if one is not known."""
        young, old, found = self._young, self._old, list[int]()
        for id in ids:
            seq = young.pop(id, 0) or old.pop(id, 0)
            if not seq:
                return None
            found.append(seq)
        return found

    def forget(self) -> None:
        self._young, self._old = {}, {}
