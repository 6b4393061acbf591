"""Folds rows of metrics as they age: minutes of all sources into ten minutes, those into hours; deletes old hours.

Pure functions from rows to the rows to store and to remove. Two leaders that fold the same rows at the same time store
the same row. A row that arrives after its time was folded is added to the folded row later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import floor
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.query_model import MetricsRow
from treadle.metrics.cells import Cells, decode, encode

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
AGES: Final = ((3 * DAY, HOUR), (2 * HOUR, 600.0))  # rows older than this -> the span of the row they are folded into
KEPT: Final = 90 * DAY
SPANS: Final = (60.0, 600.0, HOUR)
TASKS: Final = 500  # tasks with a cell of their own in a folded row
WINDOW: Final = 2 * HOUR  # s of minutes that one step of a sweep reads


class Folded(Struct, frozen=True):
    """The rows to store and to remove, in one step."""

    store: tuple[MetricsRow, ...] = ()
    remove: tuple[MetricsRow, ...] = ()


def fold(rows: Iterable[MetricsRow], now: float) -> Iterator[Folded]:
    """Fold the rows that are old enough; yields a step for each folded row. `rows` are all rows of whole hours.

    Data that cannot be read stays until it is too old: a newer Treadle may have written it.
    """
    remove = list[MetricsRow]()
    groups: dict[tuple[float, float], list[MetricsRow]] = {}
    for row in rows:
        if row.at + row.span <= now - KEPT:
            remove.append(_identity(row))
            continue
        target = _target(row, now)
        if target is not None:
            groups.setdefault(target, []).append(row)
    if remove:
        yield Folded((), tuple(remove))
    for (start, span), group in groups.items():
        if len(group) > 1 or group[0].source or group[0].span != span:
            folded = _folded(start, span, group)
            if folded is not None:
                yield folded


def _target(row: MetricsRow, now: float) -> tuple[float, float] | None:
    """The beginning and the span of the row into which this row is folded, which may be the row itself; None: the row
    stays as it is."""
    for age, span in AGES:
        start = floor(row.at / span) * span
        if start + span <= now - age:
            return (start, span) if row.span <= span else None
    return None


def _folded(at: float, span: float, group: list[MetricsRow]) -> Folded | None:
    """The row that has the cells of the group, and the rows that it replaces. None: there are none."""
    cells, used = Cells(TASKS), list[MetricsRow]()
    for row in group:
        read, is_target = decode(row.data), row.span == span and not row.source
        if read is not None:
            cells.add(read)
            if not is_target:
                used.append(_identity(row))
        elif is_target:
            return None  # the target cannot be read, and storing a row would replace it
    if not used:
        return None
    return Folded((MetricsRow(at=at, span=span, source="", data=encode(cells.by_name.values())),), tuple(used))


def _identity(row: MetricsRow) -> MetricsRow:
    """The row without its data, to remove it."""
    return replace(row, data=b"")


def windows(now: float, whole: bool) -> Iterator[tuple[float, float]]:
    """The spans of time that a leader reads and folds, one a step, in whole hours.

    whole  everything that is kept, for rows that arrived late or that no leader has folded; else only the hours in
           which rows have come of age since the last step
    """
    hour = floor(now / HOUR) * HOUR
    minutes, tens, oldest = hour - 2 * HOUR, hour - 3 * DAY, hour - KEPT
    if not whole:
        yield minutes - HOUR, minutes + HOUR
        yield tens - HOUR, tens + HOUR
        yield oldest - DAY, oldest
        return
    yield 0.0, oldest
    start = oldest
    while start < tens:
        yield start, min(start + DAY, tens)
        start += DAY
    while start < minutes + HOUR:
        yield start, start + WINDOW
        start += WINDOW
