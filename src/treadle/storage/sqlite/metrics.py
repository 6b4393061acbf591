"""Stores and reads the rows of metrics."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from typing import Final

from treadle.core.query_model import MetricsRow
from treadle.core.ranges import LONGEST
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL: Final = load("metrics")


def store_metrics(
    unit: UnitOfWork, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow]
) -> Generator[None, None, None]:
    unit.refuse("closing")
    unit.many(SQL["remove"], [(row.at, row.span, row.source) for row in remove])
    add(unit, rows)
    yield from ()


def add(unit: UnitOfWork, rows: Sequence[MetricsRow]) -> None:
    unit.many(SQL["store"], [(row.at, row.span, row.source, row.data) for row in rows])


def read_metrics(db: sqlite3.Connection, since: float, until: float) -> list[MetricsRow]:
    return _rows(db.execute(SQL["read"], (since, until, LONGEST)))


def every_row(db: sqlite3.Connection) -> tuple[MetricsRow, ...]:
    """For a move."""
    return tuple(_rows(db.execute(SQL["all"])))


def _rows(rows: Iterable[tuple[float, float, str, bytes]]) -> list[MetricsRow]:
    return [MetricsRow(at=moment, span=span, source=source, data=data) for moment, span, source, data in rows]
