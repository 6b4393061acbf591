"""Counts the rows again and compares them with the kept counts, in steps between which other calls get a turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from treadle.core.query_model import CountDrift
from treadle.storage.memory.tables import Tables
from treadle.storage.queries import Group, drifts, kind_of

STEP: Final = 1_000  # rows counted before the loop gets a turn: 1 ms


async def recount(tables: Tables, repair: bool) -> tuple[CountDrift, ...]:
    """The rows and the counts are of the same moment, because rows are never changed in place. A later change of a row
    also changes its count, so the difference between them stays the same."""
    rows, kept = list(tables.jobs.values()), {(*group, ""): jobs for group, jobs in tables.kept.items()}
    counted: Counter[Group] = Counter()
    for start in range(0, len(rows), STEP):
        counted.update((row.job.queue, row.job.task, kind_of(row), "") for row in rows[start : start + STEP])
        if start + STEP < len(rows):
            await asyncio.sleep(0)
    differences = drifts(kept, counted)
    for drift in differences if repair else ():
        tables.correct((drift.queue, drift.task, drift.kind), drift.counted - drift.kept)
    return differences
