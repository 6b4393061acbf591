"""Counts all rows again in a snapshot, and corrects the kept counts by the differences."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence

from treadle.core.query_model import CountDrift
from treadle.storage.count_groups import groups, kind_as_stored
from treadle.storage.queries import drifts
from treadle.storage.sqlite.counts import SQL, kept_rows
from treadle.storage.sqlite.rows import from_json
from treadle.storage.sqlite.unit_of_work import UnitOfWork


def compare(db: sqlite3.Connection) -> tuple[tuple[CountDrift, ...], int]:
    """Count all rows. Call this in the thread of searches; the file may be written meanwhile. Return the groups that
    differ in one state of the file, and how many repairs that state had seen."""
    db.execute("BEGIN")  # all statements below see one state of the file
    try:
        kept, counted = kept_rows(db), from_json(db.execute(SQL["counted"]).fetchone()[0])
        repairs: int = db.execute(SQL["repairs"]).fetchone()[0]
    finally:
        db.execute("COMMIT")
    return drifts(groups(kept), groups(counted)), repairs


def repair(unit: UnitOfWork, drifted: Sequence[CountDrift], repairs: int) -> Generator[None, None, bool]:
    """Correct the counts by the differences that `compare` found, which later calls do not change. Return False, and
    correct nothing, if another repair came in between."""
    yield from ()
    if unit.ex(SQL["repairs"]).fetchone()[0] != repairs:
        return False
    for drift in drifted:
        kind = kind_as_stored((drift.queue, drift.task, drift.kind, drift.limit))
        unit.counts.add(drift.queue, drift.task, kind, drift.counted - drift.kept)
    unit.ex(SQL["repaired"])
    return True
