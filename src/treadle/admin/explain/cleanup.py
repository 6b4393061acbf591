"""Sentences about the cleanup of a durable job: in that job, in the cleanup itself, and in a job that makes a try of a
step."""

from __future__ import annotations

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import on_job
from treadle.core.errors import error_line
from treadle.core.model import EXPIRED, State
from treadle.policy.cleanups import cleanup_id, has_steps, is_cleanup
from treadle.policy.parts import is_part, step_of


def other_id(facts: Facts) -> str | None:
    """The job whose cleanup or step this is, or the cleanup that an ended job may have; None: neither."""
    row = facts.row
    if is_part(row.job):
        return row.job.parent
    unsuccessful = row.state in (State.FAILED, State.CANCELLED) and row.started_at is not None
    return cleanup_id(row.job.id, row.reopenings) if unsuccessful else None


def cleanup(facts: Facts) -> str:
    """The sentence about the other of the two; "": there is none."""
    row, other = facts.row, facts.other
    if other is None:
        return ""
    if step := step_of(row.job):
        return f" It makes a try of step {step!r} of job {other.id} ({other.state})."
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
