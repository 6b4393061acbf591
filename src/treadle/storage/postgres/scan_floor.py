"""Lets claims begin to scan behind the jobs that this process has claimed, while dead rows cannot be vacuumed.

A long transaction of another client (a dump, a report, a forgotten `psql`) prevents vacuums. Each claim then reads all
rows that have ended since that transaction began: after 150,000 jobs, a claim of 200 takes 50 ms instead of 5. Floors
are used only then. A job queued ahead of the floor is found by the next full scan. That is the next claim that finds
too few jobs, or the first claim after ten times the duration of a full scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from treadle.core.model import Claim, Record
from treadle.storage.row_rules import rank

HELD: Final = 20_000  # dead rows that a vacuum left; from here on floors are used, because a full scan takes 7 ms
FETCH: Final = 0.33e-6  # s to read each of them, measured
RARELY: Final = 10.0  # durations of a full scan between two full scans
OFTEN, SELDOM = 0.05, 3.0  # s between two full scans: at least, and at most
MANY: Final = 100  # floors remembered

Floor = tuple[int, float]  # rank and queue position
Line = tuple[str, tuple[str, ...] | None]  # a queue, and the tasks that the claim accepts


class ScanFloor:
    """The last job of each queue that this process has claimed."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held = 0
        self._floors: dict[Line, tuple[Floor, float]] = {}  # each with the time of the last full scan

    def swept(self, held: int) -> None:
        """A vacuum has run; `held` dead rows are left."""
        self._held = held
        if held < HELD:
            self._floors.clear()

    def floors(self, ask: Claim) -> dict[str, Floor] | None:
        """The floors for the next claim; None: scan the whole queue."""
        if not self._floors:
            return None
        since = self._now() - min(max(RARELY * FETCH * self._held, OFTEN), SELDOM)
        floors = {}
        for queue, _ in ask.queues:
            known = self._floors.get(_line(queue, ask))
            if known is not None and known[1] >= since:
                floors[queue] = known[0]
        return floors or None

    def claimed(self, ask: Claim, floors: dict[str, Floor] | None, records: Sequence[Record]) -> None:
        """Record jobs that were claimed with these floors, in queue order. The only jobs ahead of the last of them are
        now jobs that were locked, and jobs that were queued meanwhile."""
        if self._held < HELD or ask.ids or any(room is not None for room, _ in (ask.tasks or {}).values()):
            return  # the claim may have skipped jobs of other tasks or ids
        self._held += 2 * len(records)  # a row dies when its job is claimed, and another when it ends
        last = {row.job.queue: row for row in records}
        for queue, _ in ask.queues:
            line, row = _line(queue, ask), last.get(queue)
            known = self._floors.pop(line, None)
            if row is None or row.return_position is None:
                continue
            seen = known[1] if known is not None and floors and queue in floors else self._now()
            self._floors[line] = (rank(row.job), row.return_position), seen
        while len(self._floors) > MANY:
            del self._floors[next(iter(self._floors))]


def _line(queue: str, ask: Claim) -> Line:
    return queue, None if ask.tasks is None else tuple(sorted(ask.tasks))
