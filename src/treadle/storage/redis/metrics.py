"""Stores and reads rows of metrics. Their data is opaque."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.core.query_model import MetricsRow
from treadle.storage.redis.reading import STEP, Reader


def identity(row: MetricsRow) -> tuple[str, str, str]:
    return repr(float(row.span)), repr(float(row.at)), row.source


def stored_words(rows: Sequence[MetricsRow]) -> list[Any]:
    """The rows as the scripts store them; of rows with the same identity the last."""
    arguments: list[Any] = [len(rows)]
    for row in rows:
        arguments += (*identity(row), row.data)
    return arguments


def removed_words(rows: Sequence[MetricsRow]) -> list[Any]:
    return [len(rows), *(word for row in rows for word in identity(row))]


async def read(db: Reader, since: float, until: float) -> list[MetricsRow]:
    """The rows whose span overlaps [since, until), by (at, span, source)."""
    rows, skipped = list[MetricsRow](), 0
    while True:
        answer = await db.call("read_metrics", repr(float(since)), repr(float(until)), STEP, skipped)
        for k in range(0, len(answer), 4):
            span, begin, source, data = answer[k : k + 4]
            row = MetricsRow(at=float(begin), span=float(span), source=source.decode(), data=data)
            if row.at < until and row.at + row.span > since:  # the script reads one second more: floats are rounded
                rows.append(row)
        skipped += len(answer) // 4
        if len(answer) < 4 * STEP:
            return sorted(rows, key=lambda row: (row.at, row.span, row.source))
