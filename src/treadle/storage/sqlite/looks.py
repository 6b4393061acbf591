"""Reads statistics and the glance, which programs repeat every few seconds, from the kept counts."""

from __future__ import annotations

import sqlite3

from treadle.core.limit_model import LimitUse
from treadle.core.query_model import Glance, Stats
from treadle.storage.sqlite import counts, queries


def stats(db: sqlite3.Connection, now: float) -> Stats:
    """Call this in the thread of searches."""
    db.execute("BEGIN")  # all statements below see one state of the file
    try:
        kept, workers = counts.kept(db, now), queries.workers(db, now)
        return Stats(counts=kept.counts(), workers=workers, limits=queries.limits_in_use(db, now, kept.blocked()))
    finally:
        db.execute("COMMIT")


def glance(db: sqlite3.Connection, now: float, most: int) -> Glance:
    """Call this in the thread of searches."""
    db.execute("BEGIN")
    try:
        kept, workers = counts.kept(db, now), queries.workers(db, now)
        limits = queries.limits_in_use(db, now, kept.blocked())
    finally:
        db.execute("COMMIT")
    queues, capped = kept.glance(most)
    return Glance(at=now, queues=queues, workers=workers, limits=limits, capped=capped)


def limits(db: sqlite3.Connection, now: float) -> tuple[LimitUse, ...]:
    """Call this in the thread of searches."""
    return queries.limits_in_use(db, now, counts.kept_blocked(db))
