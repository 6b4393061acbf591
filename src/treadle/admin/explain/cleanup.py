"""Sentences about the cleanup of a durable job: for the job that it cleans up after, and for the cleanup itself."""

from __future__ import annotations

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import on_job
from treadle.core.errors import error_line
from treadle.core.model import EXPIRED, State
from treadle.policy.cleanups import cleanup_id, has_steps, is_cleanup


def other_id(facts: Facts) -> str | None:
    """The job whose cleanup this is, or the cleanup that an ended job may have; None: neither."""
    row = facts.row
    if is_cleanup(row.job):
        return row.job.parent
    unsuccessful = row.state in (State.FAILED, State.CANCELLED) and row.started_at is not None
    return cleanup_id(row.job.id, row.reopenings) if unsuccessful else None


def cleanup(facts: Facts) -> str:
    """The sentence about the other of the two; "": there is none."""
    row, other = facts.row, facts.other
    if other is None:
        return ""
    if is_cleanup(row.job):
        if not other.state.final:
            return f" It is to clean up after job {other.id}, which has not ended."
        how = "expired" if other.reason == EXPIRED else str(other.state)
        return f" It cleans up after job {other.id} ({how})."
    if other.state is State.FAILED:
        why = error_line(other.error) or "no details"
        return f" Its cleanup {other.id} has failed ({why}); {on_job('retry', other)} tries it again."
    if other.state is State.CANCELLED:
        return f" Its cleanup {other.id} was cancelled."
    if other.state is State.SUCCEEDED:
        return f" Its cleanup {other.id} has ended." if has_steps(other.checkpoints) else ""
    return f" Its cleanup is job {other.id} ({other.state})."
