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
    words: list[Any] = [len(rows)]
    for row in rows:
        words += (*identity(row), row.data)
    return words


def removed_words(rows: Sequence[MetricsRow]) -> list[Any]:
    return [len(rows), *(word for row in rows for word in identity(row))]


async def read(db: Reader, since: float, until: float) -> list[MetricsRow]:
    """The rows whose span overlaps [since, until), by (at, span, source)."""
    found, past = list[MetricsRow](), 0
    while True:
        words = await db.call("read_metrics", repr(float(since)), repr(float(until)), STEP, past)
        for at in range(0, len(words), 4):
            span, begin, source, data = words[at : at + 4]
            row = MetricsRow(at=float(begin), span=float(span), source=source.decode(), data=data)
            if row.at < until and row.at + row.span > since:  # the script reads a second more, for its rounding
                found.append(row)
        past += len(words) // 4
        if len(words) < 4 * STEP:
            return sorted(found, key=lambda row: (row.at, row.span, row.source))
