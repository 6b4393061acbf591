"""Which rows were leased here lately, so that their endings find them by number.

Without it an ending would be looked up by id, in a list of ids to be read and sorted (4,000 instructions of 72,000).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from treadle import defaults

YOUNG: Final = defaults.KEEP_LEAST / 2  # s


class Leases:
    """The number of a row is given to another once it is pruned, which is `KEEP_LEAST` after its ending at the soonest.
    So what was leased less than that ago is still where it was; what is older is forgotten. A lease that was rolled
    back, lost or taken over does no harm: whoever ends it asks for its version too."""

    def __init__(self) -> None:
        self._young, self._old = dict[str, int](), dict[str, int]()
        self._since = self._before = 0.0  # when the first of the young, and of the old, may have been leased

    def note(self, ids: Iterable[str], seqs: Sequence[int], now: float) -> None:
        self._turn(now)
        self._young.update(zip(ids, seqs, strict=True))

    def take(self, ids: Iterable[str], now: float) -> list[int] | None:
        """The numbers of all these, which are forgotten; None if one is not known."""
        self._turn(now)
        young, old, found = self._young, self._old, list[int]()
        for id in ids:
            seq = young.pop(id, 0) or old.pop(id, 0)
            if not seq:
                return None
            found.append(seq)
        return found

    def _turn(self, now: float) -> None:
        if not 0 <= now - self._since < YOUNG:
            self._old, self._before = self._young, self._since
            self._young, self._since = {}, now
        if not 0 <= now - self._before < defaults.KEEP_LEAST:
            self._old = {}
