"""A sorted collection of which every entry can be removed at the same small cost.

In one list, each removal at the head would move all entries behind it: to block 100,000 jobs one after the other would
take time proportional to the square of their number.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import itemgetter

WIDTH = 512  # entries of a new part; a part with more than twice as many is split

Spot = tuple[float, float, str]  # the position of a job: (-rank, queue position, id)

_last: Callable[[list[Spot]], Spot] = itemgetter(-1)


class Ordered:
    """Positions in order, stored in parts."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[list[Spot]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Spot:
        """The entry at this distance from the head. Raises IndexError."""
        for part in self._parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)

    def add(self, spot: Spot) -> None:
        self._count += 1
        parts = self._parts
        if not parts:
            parts.append([spot])
            return
        number = self._part_of(spot) if spot < parts[-1][-1] else len(parts) - 1
        part = parts[number]
        insort(part, spot)
        if len(part) > 2 * WIDTH:
            parts[number : number + 1] = [part[:WIDTH], part[WIDTH:]]

    def remove(self, spot: Spot) -> None:
        """Remove an entry. It must exist."""
        number = self._part_of(spot) if spot > self._parts[0][-1] else 0
        part = self._parts[number]
        del part[bisect_left(part, spot)]
        if not part:
            del self._parts[number]
        self._count -= 1

    def first_from(self, spot: Spot) -> Spot | None:
        """The first entry that is not before this position."""
        number = self._part_of(spot)
        if number == len(self._parts):
            return None
        part = self._parts[number]
        return part[bisect_left(part, spot)]

    def alike(self, first: float) -> Iterator[Spot]:
        """The entries with this first value, in order. Nothing may be added or removed meanwhile."""
        start = (first, -math.inf, "")
        number = self._part_of(start)
        for part in self._parts[number:]:
            for spot in part[bisect_left(part, start) :]:
                if spot[0] != first:
                    return
                yield spot

    def backwards(self) -> Iterator[Spot]:
        """All entries, the last one first. Nothing may be added or removed meanwhile."""
        for part in reversed(self._parts):
            yield from reversed(part)

    def _part_of(self, spot: Spot) -> int:
        return bisect_left(self._parts, spot, key=_last)
