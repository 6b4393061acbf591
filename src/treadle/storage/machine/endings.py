"""Ends a job, and counts down the jobs that wait for it.

An ending counts once for each job that waits, in the same call (law 5).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from treadle.core.model import UPSTREAM, Record, State
from treadle.storage.machine import limits
from treadle.storage.machine.queueing import end_wait, queue_job
from treadle.storage.machine.rows import STEP, Dependent, Rows, Steps
from treadle.storage.row_rules import expires_at, keeps_key


def end_job(
    rows: Rows, row: Record, state: State, reason: str | None, error: str | None, keep: float | None = None
) -> None:
    """End a job. `count_endings` must follow before the call is over."""
    now, id = rows.now, row.job.id
    if not keeps_key(row, now):
        rows.drop_key(row)
    rows.put(
        replace(
            row,
            version=row.version + 1,
            state=state,
            reason=reason,
            error=error,
            queue_position=None,
            blocked_on=None,
            pending=0,
            due_at=None,
            updated_at=now,
            ended_at=now,
            expires_at=expires_at(row, state, now, keep),
        )
    )
    rows.endings.append((id, state))
    rows.ended.add(id)
    limits.unblock_limits(rows, row)


def count_endings(rows: Rows) -> Steps[None]:
    """Count down the jobs that wait for these ended jobs, and for the jobs that end as a consequence. One ending may
    have a million dependents: after each STEP of them the rows are written and the loop gets a turn."""
    counted = 0
    while rows.endings:
        up, state = rows.endings.pop()
        counted += 1
        waiting = [dependent for dependent in rows.dependents(up) if dependent[2]]
        for start in range(0, len(waiting), STEP):
            part = waiting[start : start + STEP]
            if len(part) > 1:
                rows.read([dependent[0] for dependent in part])
            for dependent in part:
                _count(rows, up, dependent, state)
            counted += len(part)
            if counted >= STEP:
                rows.sync()
                yield
                counted = 0
        if counted >= STEP:
            yield
            counted = 0


def _count(rows: Rows, up: str, dependent: Dependent, state: State) -> None:
    down, version, _, soft = dependent
    rows.set_edge(up, down, False)
    row = rows.get(down)
    if row is None or row.state is not State.WAITING or row.version != version:
        return
    if soft or row.failures_allowed is None or state is State.SUCCEEDED:
        row = replace(row, pending=row.pending - 1)
    else:
        row = replace(row, failures_allowed=row.failures_allowed - 1)
    if row.pending <= 0:
        end_wait(rows, row)
    elif row.failures_allowed is None or row.failures_allowed >= 0:
        rows.put(row)
    elif row.started_at is None and not row.function_done:
        end_job(rows, row, State.CANCELLED, UPSTREAM, f"{up}, which it waited for, ended as {state}")
    else:
        queue_job(rows, row, rows.now)


def wait_for_upstreams(rows: Rows, id: str, after: Iterable[str], *, again: bool = False) -> Steps[None]:
    """Make a job wait for these; those that have ended count at once. `again`: the job has waited for them before. Then
    upstreams without a row count as successes, because they can no longer end."""
    after = list(dict.fromkeys(after))
    if after:
        rows.wait_for([(up, id) for up in after], rows.row(id).version)
        rows.read(after)
    for up in after:
        upstream = rows.get(up)
        if upstream is not None:
            state = upstream.state
        else:
            state = State.SUCCEEDED if again else State.WAITING
        if state.final:
            edge = rows.edge(up, id)
            if edge is not None and edge[2]:
                _count(rows, up, edge, state)
    if rows.endings:
        yield from count_endings(rows)
    row = rows.row(id)
    if row.state is State.WAITING and row.pending <= 0:
        end_wait(rows, row)
