"""Decides which job holds a key: when a key is free, and what a new job does to the holder that it replaces."""

from __future__ import annotations

from treadle.core.model import SUPERSEDED, NewJob, Record, State
from treadle.storage.machine.endings import count_endings, end_job
from treadle.storage.machine.rows import Rows, Steps
from treadle.storage.row_rules import keeps_key


def holds(row: Record, now: float, leaving: str = "") -> bool:
    """Whether the job that a key names still holds it. The job `leaving` is about to free its key."""
    return not (row.state.final or row.job.id == leaving) or keeps_key(row, now)


def holder(rows: Rows, key: str) -> Record | None:
    """The job that holds a key."""
    id = rows.holders([key]).get(key)
    row = rows.get(id) if id is not None else None
    return row if row is not None and holds(row, rows.now) else None


def take_over(rows: Rows, new: NewJob, parent: str = "") -> Steps[str | None]:
    """Free the key of a new job. Return the job that the new one must wait for: the former holder if it runs, or the
    job that the superseded holder waited for itself. Never return `parent`, which may be waiting for the new job, or a
    job that waits for `parent`."""
    assert new.key is not None
    row = holder(rows, new.key)
    rows.give_key(new.key, None)
    if row is None or row.job.id == parent or row.state.final:  # it ended in this call, and its window holds the key
        return None
    first: str | None = row.job.id
    if not (
        row.function_done or row.state is State.RUNNING or (row.state is State.WAITING and row.started_at is not None)
    ):
        end_job(rows, row, State.CANCELLED, SUPERSEDED, f"superseded by {new.id}")
        yield from count_endings(rows)
        id = rows.behind(row.job.id)
        before = rows.get(id) if id is not None else None
        first = before.job.id if before is not None and not before.state.final else None
    if first is None or (parent and rows.waiting_for(parent, [first])):
        return None
    rows.set_behind(new.id, first)
    return first
