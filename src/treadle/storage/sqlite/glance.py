"""A glance: what `stats` shows, counted up to a bound from indexes. One statement, because it runs in a thread, which
may lose the GIL at every row (`threads.py`)."""

from __future__ import annotations

import sqlite3
from typing import Final

from msgspec.structs import replace

from treadle.core.query_model import Glance, QueueGlance
from treadle.storage.queries import merged_glances
from treadle.storage.sqlite import queries
from treadle.storage.sqlite.rows import from_json
from treadle.storage.sqlite.statements import load

SQL: Final = load("glance")


def glance(db: sqlite3.Connection, now: float, most: int) -> Glance:
    """Call this in the thread of searches."""
    db.execute("BEGIN")  # all statements below see one state of the file
    try:
        found, capped = _queues(db, now, most)
        workers, limits = queries.workers(db, now), queries.limits_in_use(db, now, most)
    finally:
        db.execute("COMMIT")
    return Glance(at=now, queues=found, workers=workers, limits=limits, capped=capped)


def _queues(db: sqlite3.Connection, now: float, most: int) -> tuple[tuple[QueueGlance, ...], tuple[str, ...]]:
    found: dict[str, dict[str, int]] = {}
    oldest: dict[str, float] = {}
    for kind, queue, count, age in from_json(db.execute(SQL["queues"], (most + 1, now)).fetchone()[0]):
        found.setdefault(queue, {})[kind] = count
        if age is not None:
            oldest[queue] = age
    counted = [replace(QueueGlance(name=name, oldest=oldest.get(name)), **kinds) for name, kinds in found.items()]
    return merged_glances([(counted, ())], most)  # each count went one beyond the bound
