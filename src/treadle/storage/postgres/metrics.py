"""Stores and reads rows of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from treadle.core.query_model import MetricsRow
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.rows import text, unescaped

STORE: Final = "SELECT {schema}.store_metrics(%s::json, %s::json)::text"
READ: Final = (
    "SELECT at, span, source, data FROM {schema}.read_metrics(%s::float8, %s::float8) ORDER BY at, span, source"
)
ALL: Final = "SELECT at, span, source, encode(data, 'hex') FROM {schema}.metrics ORDER BY at, span, source"


async def store_metrics(run: Runner, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow]) -> None:
    stored = {(row.at, row.span, row.source): row for row in rows}  # the last one of each identity
    gone = {(row.at, row.span, row.source): row for row in remove}
    for key in stored:
        gone.pop(key, None)
    if stored or gone:
        await run.run(STORE, [text(words(stored.values())), text(words(gone.values()))])


def words(rows: Iterable[MetricsRow]) -> list[dict[str, Any]]:
    """Rows as the functions read them."""
    return [{"at": row.at, "span": row.span, "source": row.source, "data": row.data.hex()} for row in rows]


async def read_metrics(run: Runner, since: float, until: float) -> list[MetricsRow]:
    return [_row(*row) for row in await run.run(READ, [since, until])]


async def all_metrics(run: Runner) -> tuple[MetricsRow, ...]:
    return tuple(_row(*row) for row in await run.run(ALL, [], often=False))


def _row(at: float, span: float, source: str, data: str) -> MetricsRow:
    return MetricsRow(at=at, span=span, source=unescaped(source), data=bytes.fromhex(data))
