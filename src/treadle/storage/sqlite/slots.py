"""Takes and frees the slots of many jobs, with one statement for each limit.

One by one a job with a limit costs 71 us instead of 9: its row is read and written whole, and each limit is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from treadle.storage.machine.limits import unblock_limit
from treadle.storage.row_rules import costs
from treadle.storage.sqlite.rows import LIMITS, SLOT, decode_all, text
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import SQL as UNIT_SQL
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("slots")


def take(unit: UnitOfWork, taken: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Store the slots of rows that are leased for the first time: (limit, cost) -> rows."""
    for (key, cost), seqs in taken.items():
        unit.ex(SQL["take"], (key, cost, text(seqs)))


class Freed(Struct):
    """The slots that ending rows hold, and the limits that may admit blocked jobs once these slots are free."""

    slots: dict[str, list[int]] = field(default_factory=dict)  # limit -> rows
    limits: set[str] = field(default_factory=set)

    def add(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """(seq, flags, body) each."""
        limited = [row for row in rows if row[1] & (LIMITS | SLOT)]
        for (seq, _, _), job in zip(limited, decode_all(row[2] for row in limited), strict=True):
            self.limits.update([key for key, _ in job.limits])
            for key, _ in costs(job):
                self.slots.setdefault(key, []).append(seq)

    def awaited(self, unit: UnitOfWork) -> bool:
        """Whether one of these limits blocks jobs."""
        return any(unit.ex(UNIT_SQL["next_blocked_queue"], (key, "")).fetchone() for key in self.limits)

    def give_back(self, unit: UnitOfWork) -> None:
        for key, seqs in self.slots.items():
            unit.ex(SQL["give_back"], (key, text(seqs)))
        for key in self.limits:
            unblock_limit(unit, key)
        unit.sync()
