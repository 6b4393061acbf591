"""Acts on a job that has ended: keeps its row longer or shorter, or reopens it with all that ended because of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from treadle.core.errors import KeyHeld
from treadle.core.model import ACT, APPLIED, CHILDREN, ROUND, Outcome, Record, Settled, State
from treadle.storage.machine.endings import wait_for_upstreams
from treadle.storage.machine.keys import holder
from treadle.storage.machine.queueing import queue_job, schedule_job
from treadle.storage.machine.rows import STEP, Dependent, Rows, Steps
from treadle.storage.row_rules import deadline_of, expires_at, failed_by_child, needed, tolerated, was_doomed, within


def settle_ended(rows: Rows, row: Record, out: Outcome) -> Steps[Settled]:
    """Apply an outcome to a job that has ended."""
    if out.state is row.state and out.keep is not None:
        until = expires_at(row, row.state, row.ended_at or rows.now, out.keep)
        rows.remember(out.id, out.checkpoints)
        is_act = any(name == ACT for name, _ in out.checkpoints)  # the next act must name the new version
        rows.put(replace(row, expires_at=until, version=row.version + is_act))
        return APPLIED
    if out.state is not State.READY:
        return Settled("stale", f"it is {row.state} at version {row.version}")
    to_reopen, edges = yield from _jobs_to_reopen(rows, row)
    for reopened in to_reopen:
        held = holder(rows, reopened.job.key) if reopened.job.key is not None else None
        if held is not None and held.job.id != reopened.job.id:
            shown = held.job.id if within(out.reach, held.job.queue) else ""
            return Settled("refused", str(KeyHeld(reopened.job.key or "", shown)))
    remember(rows, out)
    yield from _reopen_all(rows, to_reopen, edges, out.delay)
    return APPLIED


def remember(rows: Rows, out: Outcome) -> None:
    """Store the checkpoints of an outcome; those of a restart replace the steps."""
    if any(name == ROUND for name, _ in out.checkpoints):
        rows.forget_steps(out.id)
    rows.remember(out.id, out.checkpoints)


def _jobs_to_reopen(rows: Rows, row: Record) -> Steps[tuple[list[Record], Mapping[str, Sequence[Dependent]]]]:
    """The job, the jobs that it doomed, the ancestors that failed because of a child, and what each of these doomed;
    and the dependents of each."""
    by_id, stack, unwritten = {row.job.id: row}, [row], 0
    edges: dict[str, Sequence[Dependent]] = {}
    while stack:
        current = stack.pop()
        edges[current.job.id] = dependents = rows.dependents(current.job.id)
        ids = [down for down, *_ in dependents]
        related: list[Record] = []
        for start in range(0, len(ids), STEP):
            part = ids[start : start + STEP]
            rows.read(part)
            related += [down for id in part if (down := rows.get(id)) is not None and was_doomed(down)]
            unwritten += len(part)
            if unwritten >= STEP:
                unwritten = 0
                yield
        parent = rows.get(current.job.parent or "")
        if parent is not None and failed_by_child(parent):
            related.append(parent)
        for other in related:
            if other.job.id not in by_id:
                by_id[other.job.id] = other
                stack.append(other)
    return list(by_id.values()), edges


def _reopen_all(
    rows: Rows, ended: Sequence[Record], edges: Mapping[str, Sequence[Dependent]], delay: float
) -> Steps[None]:
    """Reopen these. The first starts after `delay`; the others wait as they did."""
    for number, row in enumerate(ended, 1):
        for down, version, is_open, soft in edges[row.job.id]:
            if not is_open and not soft:
                _undo_count_down(rows, row, down, version)
        if number % STEP == 0:
            yield
    for number, row in enumerate(ended, 1):
        _reopen_row(rows, row)
        if number % STEP == 0:
            rows.sync()
            yield
    first = replace(rows.row(ended[0].job.id), pending=0)
    if delay > 0:
        schedule_job(rows, first, rows.now + delay)
    else:
        queue_job(rows, first, rows.now)
    for number, row in enumerate(ended[1:], 1):
        yield from _restart_wait(rows, row.job.id)
        if number % STEP == 0:
            rows.sync()
            yield


def _undo_count_down(rows: Rows, up: Record, down: str, version: int) -> None:
    """A job that still waits, and for which this ending counted, waits for the next ending."""
    row = rows.get(down)
    if row is None or row.state is not State.WAITING or version != row.version:
        return
    rows.set_edge(up.job.id, down, True)
    if row.failures_allowed is None or up.state is State.SUCCEEDED:
        rows.put(replace(row, pending=row.pending + 1))
    else:
        rows.put(replace(row, failures_allowed=row.failures_allowed + 1))


def _reopen_row(rows: Rows, row: Record) -> None:
    if row.job.key is not None:
        rows.give_key(row.job.key, row.job.id)
    function_done = row.job.function_done or row.reason == CHILDREN
    deadline_at = deadline_of(row.job, row.created_at, rows.now)
    rows.put(
        replace(
            row,
            version=row.version + 1,
            state=State.WAITING,
            function_done=function_done,
            attempt=0,
            lost=0,
            reopenings=row.reopenings + 1,
            worker=None,
            result=None,
            value=None,
            error=None,
            reason=None,
            return_position=None,
            deadline_at=deadline_at,
            due_at=None if function_done else deadline_at,
            started_at=None,
            ended_at=None,
            expires_at=None,
            updated_at=rows.now,
        )
    )


def _restart_wait(rows: Rows, id: str) -> Steps[None]:
    """Make a reopened job wait again for the upstreams that were reopened with it."""
    row = rows.row(id)
    required, failures_allowed = (
        (None, None)
        if row.function_done and not row.job.function_done
        else (row.job.required, row.job.failures_allowed)
    )
    rows.put(
        replace(
            row, pending=needed(required, row.after), failures_allowed=tolerated(failures_allowed, required, row.after)
        )
    )
    rows.drop_edges([(up, id) for up in row.after])
    yield from wait_for_upstreams(rows, id, row.after, again=True)
