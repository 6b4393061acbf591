"""Remembers the row numbers of recent leases, so that their endings find the rows by number and count them by task.

By id, an ending would need a list of ids to parse and sort (4,000 instructions of 72,000).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from treadle.core.model import Record

MOST: Final = 10_000  # row numbers kept; beyond twice as many, the oldest are dropped
TASKS: Final = 4_096  # numbers for pairs of queue and task; rows of further ones are not remembered

Group = tuple[str, str]  # queue, task


class Leased(Struct):
    """The row numbers of some leases, and how many of them each queue and task has."""

    seqs: list[int]
    groups: Counter[Group]


class RecentLeases:
    """An entry stays correct, because no number is given to a second row (`enqueue.sql`). An entry of an expired lease
    does no harm: an ending names the version of the row too.

    An entry is one integer, row number and number of the group: a tuple for each job would cost 1,000 instructions."""

    def __init__(self) -> None:
        self._young, self._old = dict[str, int](), dict[str, int]()
        self._groups, self._numbers = list[Group](), dict[Group, int]()

    def note(self, rows: Sequence[Record], seqs: Sequence[int], group: Group | None) -> None:
        """`group`: queue and task of all rows, if they are the same."""
        if len(self._young) >= MOST:
            self._old, self._young = self._young, {}
        if group is not None:
            number = self._number(group)
            if number < TASKS:
                self._young.update(
                    zip([row.job.id for row in rows], [seq * TASKS + number for seq in seqs], strict=True)
                )
            return
        for row, seq in zip(rows, seqs, strict=True):
            number = self._number((row.job.queue, row.job.task))
            if number < TASKS:
                self._young[row.job.id] = seq * TASKS + number

    def _number(self, group: Group) -> int:
        number = self._numbers.get(group)
        if number is None:
            number = len(self._groups)
            if number < TASKS:
                self._groups.append(group)
                self._numbers[group] = number
        return number

    def take(self, ids: Iterable[str]) -> Leased | None:
        """The leases of all these rows, which are then forgotten; None if one of them is unknown."""
        young, old = self._young, self._old
        entries: list[int] = []
        for id in ids:
            entry = young.pop(id, 0) or old.pop(id, 0)
            if not entry:
                return None
            entries.append(entry)
        numbers = [entry % TASKS for entry in entries]
        if numbers.count(numbers[0]) == len(numbers):
            groups = Counter({self._groups[numbers[0]]: len(numbers)})
        else:
            groups = Counter([self._groups[number] for number in numbers])
        return Leased([entry // TASKS for entry in entries], groups)

    def forget(self) -> None:
        self._young, self._old = {}, {}
