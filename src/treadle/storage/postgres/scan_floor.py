"""Where a claim begins to look while rows that are gone cannot be swept away: behind what this process has claimed.

Without it somebody else's long transaction (a dump, a report, a forgotten `psql`) would stop the queue: nothing that
ended since it began may be removed, each claim fetches all of it, and after 150,000 jobs one of 200 takes 50 ms instead
of 5. Only then is it used. Who joins the line further ahead than where we look is found when all of it is looked at: by
every claim that finds too few, and after ten times as long as such a look takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from treadle.core.model import Claim, Record
from treadle.storage.row_rules import rank

HELD: Final = 20_000  # rows that could not be swept: from here on, for a look at all of the line takes 7 ms
FETCH: Final = 0.33e-6  # s for each of them, measured
RARELY: Final = 10.0  # times as long as a full look takes, until the next
OFTEN, SELDOM = 0.05, 3.0  # s from one full look to the next: at least, and at most
MANY: Final = 100  # lines remembered

Floor = tuple[int, float]  # rank and place
Line = tuple[str, tuple[str, ...] | None]  # a queue, and the tasks looked for in it


class ScanFloor:
    """The head of each line as this process has seen it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held = 0
        self._floors: dict[Line, tuple[Floor, float]] = {}  # and the moment of the last full look

    def swept(self, held: int) -> None:
        """Dead rows have been swept, but for so many."""
        self._held = held
        if held < HELD:
            self._floors.clear()

    def floors(self, ask: Claim) -> dict[str, Floor] | None:
        """For the claim that is about to be made; None: look at all of the line."""
        if not self._floors:
            return None
        since = self._now() - min(max(RARELY * FETCH * self._held, OFTEN), SELDOM)
        found = {}
        for queue, _ in ask.queues:
            known = self._floors.get(_line(queue, ask))
            if known is not None and known[1] >= since:
                found[queue] = known[0]
        return found or None

    def claimed(self, ask: Claim, floors: dict[str, Floor] | None, records: Sequence[Record]) -> None:
        """What was claimed with these floors, in the order of the line: nobody stands before the last of it now, but
        who was locked or joined meanwhile."""
        if self._held < HELD or ask.ids or any(room is not None for room, _ in (ask.tasks or {}).values()):
            return  # of whom was passed over nothing is known
        self._held += 2 * len(records)  # each leaves a row when it is claimed, and another when it ends
        last = {row.job.queue: row for row in records}
        for queue, _ in ask.queues:
            line, row = _line(queue, ask), last.get(queue)
            known = self._floors.pop(line, None)
            if row is None or row.joined_at is None:
                continue
            seen = known[1] if known is not None and floors and queue in floors else self._now()
            self._floors[line] = (rank(row.job), row.joined_at), seen
        while len(self._floors) > MANY:
            del self._floors[next(iter(self._floors))]


def _line(queue: str, ask: Claim) -> Line:
    return queue, None if ask.tasks is None else tuple(sorted(ask.tasks))
