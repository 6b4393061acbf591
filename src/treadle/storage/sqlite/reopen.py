"""After the end: a row is kept longer or shorter, or reopened with all that ended because of it.

Without it a dead job could not be retried.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.errors import KeyHeld
from treadle.model import APPLIED, CHILDREN, UPSTREAM, Outcome, Record, Settled, State
from treadle.storage.rules import expires_at, needed
from treadle.storage.sqlite import endings
from treadle.storage.sqlite.desk import SQL as DESK
from treadle.storage.sqlite.desk import Desk

WAITING = State.WAITING


def after_the_end(desk: Desk, row: Record, out: Outcome) -> Settled:
    if out.state is row.state and out.keep is not None:
        until = expires_at(row, row.state, row.ended_at or desk.now, out.keep)
        desk.put(replace(row, expires_at=until))
        return APPLIED
    if out.state is not State.READY:
        return Settled("stale", f"it is {row.state} at version {row.version}")
    found = _would_reopen(desk, row)
    for each in found:
        holder = endings.holder(desk, each.job.key) if each.job.key is not None else None
        if holder is not None and holder.job.id != each.job.id:
            return Settled("refused", str(KeyHeld(each.job.key or "", holder.job.id)))
    for each in found:
        for down, version, open, soft in desk.ex(DESK["downs"], (each.job.id,)).fetchall():
            if not open and not soft:
                _uncount(desk, each, down, version)
    for each in found:
        _reopen(desk, each)
    first = replace(desk.row(row.job.id), pending=0)
    if out.delay > 0:
        endings.schedule(desk, first, desk.now + out.delay)
    else:
        desk.join(first, desk.now)
    for each in found[1:]:
        _recount(desk, each.job.id)
    return APPLIED


def _would_reopen(desk: Desk, row: Record) -> list[Record]:
    """The job, then what it doomed and every ancestor that failed because of a child, each with what that doomed."""
    found, stack = {row.job.id: row}, [row]
    while stack:
        each = stack.pop()
        downs = [desk.get(down) for down, *_ in desk.ex(DESK["downs"], (each.job.id,)).fetchall()]
        related = [
            down for down in downs
            if down is not None and down.reason == UPSTREAM and down.state is State.CANCELLED
        ]  # fmt: skip
        parent = desk.get(each.job.parent or "")
        if parent is not None and parent.state is State.FAILED and parent.reason == CHILDREN:
            related.append(parent)
        for other in related:
            if other.job.id not in found:
                found[other.job.id] = other
                stack.append(other)
    return list(found.values())


def _uncount(desk: Desk, up: Record, down: str, version: int) -> None:
    """Who waits still, and has counted this ending, waits for the next one."""
    row = desk.get(down)
    if row is None or row.state is not WAITING or version != row.version:
        return
    desk.ex(DESK["open_again"], (up.job.id, down))
    if row.slack is None or up.state is State.SUCCEEDED:
        desk.put(replace(row, pending=row.pending + 1))
    else:
        desk.put(replace(row, slack=row.slack + 1))


def _reopen(desk: Desk, row: Record) -> None:
    if row.job.key is not None:
        desk.take_key(row.job.key, row.job.id)
    ran = row.job.ran or row.reason == CHILDREN
    deadline_at = None if row.job.deadline is None else desk.now + row.job.deadline
    desk.put(replace(
        row, version=row.version + 1, state=WAITING, ran=ran, attempt=0, lost=0, round=row.round + 1, worker=None,
        result=None, value=None, error=None, reason=None, joined_at=None, deadline_at=deadline_at,
        due_at=None if ran else deadline_at, started_at=None, ended_at=None, expires_at=None, updated_at=desk.now,
    ))  # fmt: skip


def _recount(desk: Desk, id: str) -> None:
    """What it waits for now: those of its upstreams that were reopened have to end again."""
    row = desk.row(id)
    need, slack = (None, None) if row.ran and not row.job.ran else (row.job.need, row.job.slack)
    row = replace(row, pending=needed(need, len(row.after)), slack=slack)
    desk.put(row)
    desk.many(DESK["drop_edge"], [(up, id) for up in row.after])
    endings.watch_ups(desk, id, row.after)
