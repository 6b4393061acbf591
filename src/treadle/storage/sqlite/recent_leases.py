"""Remembers the row numbers of recent leases, with queue and task, so that their endings find the rows by number and
count them without reading them.

By id, an ending would need a list of ids to parse and sort (4,000 instructions of 72,000).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from treadle.core.model import Record

MOST: Final = 10_000  # row numbers kept; beyond twice as many, the oldest are dropped

Lease = tuple[int, str, str]
"""The number of the row, its queue and its task."""


class RecentLeases:
    """An entry stays correct, because no number is given to a second row (`enqueue.sql`). An entry of an expired lease
    does no harm: an ending names the version of the row too."""

    def __init__(self) -> None:
        self._young, self._old = dict[str, Lease](), dict[str, Lease]()

    def note(self, rows: Iterable[Record], seqs: Sequence[int]) -> None:
        if len(self._young) >= MOST:
            self._old, self._young = self._young, {}
        young = self._young
        for row, seq in zip(rows, seqs, strict=True):
            job = row.job
            young[job.id] = seq, job.queue, job.task

    def take(self, ids: Iterable[str]) -> list[Lease] | None:
        """The leases of all these rows, which are then forgotten; None if one of them is unknown."""
        young, old, found = self._young, self._old, list[Lease]()
        for id in ids:
            lease = young.pop(id, None) or old.pop(id, None)
            if lease is None:
                return None
            found.append(lease)
        return found

    def forget(self) -> None:
        self._young, self._old = {}, {}
