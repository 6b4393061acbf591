"""After the end: keeping a row longer or shorter, or reopening it with all that ended because of it.

Without it a dead job could only be sent again, as another one, and whoever waited for it would stay cancelled.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.core.model import APPLIED, CHILDREN, UPSTREAM, Outcome, Record, Settled, State
from treadle.errors import KeyHeld
from treadle.storage.memory.endings import WAITING, Endings
from treadle.storage.row_rules import expires_at, needed, noted, tolerated, within


def after_the_end(ends: Endings, row: Record, out: Outcome, now: float) -> Settled:
    if out.state is row.state and out.keep is not None:
        until = expires_at(row, row.state, row.ended_at or now, out.keep)
        ends.tables.put(replace(noted(row, out), expires_at=until))
        return APPLIED
    if out.state is not State.READY:
        return Settled("stale", f"it is {row.state} at version {row.version}")
    found = found_with(ends, row)
    for each in found:
        holder = ends.holder(each.job.key, now) if each.job.key is not None else None
        if holder is not None and holder != each.job.id:
            shown = holder if within(out.reach, ends.jobs[holder].job.queue) else ""
            return Settled("refused", str(KeyHeld(each.job.key or "", shown)))
    for each in found:
        for down in list(ends.down.get(each.job.id, ())):
            uncount(ends, each, down)
    found[0] = replace(row, checkpoints=noted(row, out).checkpoints)
    for each in found:
        reopen(ends, each, now)
    first = replace(ends.jobs[row.job.id], pending=0)
    if out.delay > 0:
        ends.schedule(first, now + out.delay)
    else:
        ends.tables.join(first, now)
    for each in found[1:]:
        recount(ends, each.job.id, now)
    return APPLIED


def found_with(ends: Endings, row: Record) -> list[Record]:
    """The job, what it doomed, every ancestor that failed because of a child; of each, what that doomed."""
    found, stack = {row.job.id: row}, [row]
    while stack:
        each = stack.pop()
        related = [ends.jobs[down] for down in ends.down.get(each.job.id, ()) if down in ends.jobs]
        related = [down for down in related if down.reason == UPSTREAM and down.state is State.CANCELLED]
        parent = ends.jobs.get(each.job.parent or "")
        if parent is not None and parent.state is State.FAILED and parent.reason == CHILDREN:
            related.append(parent)
        for other in related:
            if other.job.id not in found:
                found[other.job.id] = other
                stack.append(other)
    return list(found.values())


def uncount(ends: Endings, up: Record, down: str) -> None:
    """Who waits still, and has counted this ending, waits for the next one."""
    edge, row = ends.down[up.job.id][down], ends.jobs.get(down)
    if row is None or row.state is not WAITING or edge.open or edge.soft or edge.version != row.version:
        return
    edge.open = True
    if row.failures_allowed is None or up.state is State.SUCCEEDED:
        ends.tables.put(replace(row, pending=row.pending + 1))
    else:
        ends.tables.put(replace(row, failures_allowed=row.failures_allowed + 1))


def reopen(ends: Endings, row: Record, now: float) -> None:
    if row.job.key is not None:
        ends.keys[row.job.key] = row.job.id
    function_done = row.job.function_done or row.reason == CHILDREN
    deadline_at = None if row.job.deadline is None else now + row.job.deadline
    ends.tables.put(
        replace(
            row,
            version=row.version + 1,
            state=WAITING,
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
            updated_at=now,
        )
    )


def recount(ends: Endings, id: str, now: float) -> None:
    """What it waits for now: those of its upstreams that were reopened have to end again."""
    row = ends.jobs[id]
    required, failures_allowed = (
        (None, None)
        if row.function_done and not row.job.function_done
        else (row.job.required, row.job.failures_allowed)
    )
    row = replace(
        row, pending=needed(required, row.after), failures_allowed=tolerated(failures_allowed, required, row.after)
    )
    ends.tables.put(row)
    for up in row.after:
        ends.down[up].pop(id, None)
    ends.watch_ups(id, row.after, now)
