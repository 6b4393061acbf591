"""Queues a job: computes its position, and what changes in its row when it stops waiting."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.core.model import NewJob, Record, State
from treadle.storage.machine.rows import QueueEnds, Rows
from treadle.storage.row_rules import delay_of, first_moment, turn


def position(ends: QueueEnds, job: NewJob, when: float) -> float:
    """The position of a job that is queued at `when`: behind the last job of its lane. If its lane has none, the job
    goes to the head of the queue."""
    moment = turn(job, when)
    if job.lane is None:
        return moment
    last = ends.lane_last(job)
    if last is not None:
        return last + job.stride
    head = ends.queue_head(job)
    return moment if head is None else min(moment, head)


def queue_job(rows: Rows, row: Record, when: float) -> None:
    """Queue a job: at the position it had, or at a new one as of `when`."""
    place = row.return_position if row.return_position is not None else position(rows, row.job, when)
    due = None if row.function_done else row.deadline_at
    rows.put(replace(row, state=State.READY, queue_position=place, return_position=place, blocked_on=None, due_at=due))


def schedule_job(rows: Rows, row: Record, run_at: float) -> None:
    """Make a job ready, to be queued at `run_at`."""
    due = first_moment(run_at, None if row.function_done else row.deadline_at)
    rows.put(
        replace(
            row, state=State.READY, pending=0, queue_position=None, blocked_on=None, return_position=None, due_at=due
        )
    )
    rows.topics.add(f"queue:{row.job.queue}")


def end_wait(rows: Rows, row: Record) -> None:
    """A job waits no longer: queue it, or schedule it if its delay is not over. A promise still waits for its
    settlement."""
    delay = delay_of(row.job, row.created_at)
    run_at = row.created_at + delay
    if not row.job.task:
        rows.put(row)
    elif row.started_at is None and not row.function_done and delay > 0 and run_at > rows.now:
        schedule_job(rows, row, run_at)
    else:
        queue_job(rows, replace(row, pending=0), rows.now)
