"""After the end: a row is kept longer or shorter, or reopened with all that ended because of it.

Without it a dead job could not be retried.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from msgspec.structs import replace

from treadle.core.model import APPLIED, CHILDREN, UPSTREAM, Outcome, Record, Settled, State
from treadle.errors import KeyHeld
from treadle.storage.row_rules import expires_at, needed, noted, tolerated, within
from treadle.storage.sqlite import endings
from treadle.storage.sqlite.unit_of_work import SQL as DESK
from treadle.storage.sqlite.unit_of_work import UnitOfWork

WAITING = State.WAITING
STEP: Final = 64  # rows between two turns of the loop


def after_the_end(unit: UnitOfWork, row: Record, out: Outcome) -> Generator[None, None, Settled]:
    if out.state is row.state and out.keep is not None:
        until = expires_at(row, row.state, row.ended_at or unit.now, out.keep)
        _remember(unit, out)
        unit.put(replace(noted(row, out), expires_at=until))
        return APPLIED
    if out.state is not State.READY:
        return Settled("stale", f"it is {row.state} at version {row.version}")
    found = yield from _would_reopen(unit, row)
    for each in found:
        holder = endings.holder(unit, each.job.key) if each.job.key is not None else None
        if holder is not None and holder.job.id != each.job.id:
            shown = holder.job.id if within(out.reach, holder.job.queue) else ""
            return Settled("refused", str(KeyHeld(each.job.key or "", shown)))
    _remember(unit, out)
    found[0] = replace(row, checkpoints=noted(row, out).checkpoints)
    yield from _reopen_all(unit, found, out.delay)
    return APPLIED


def _remember(unit: UnitOfWork, out: Outcome) -> None:
    if out.checkpoints:
        unit.remember(out.id, out.checkpoints)


def _reopen_all(unit: UnitOfWork, found: list[Record], delay: float) -> Generator[None, None, None]:
    """These rows, of which the first was asked for: it starts after `delay`, the others wait as they did."""
    for number, each in enumerate(found, 1):
        for down, version, open, soft in unit.ex(DESK["downs"], (each.job.id,)).fetchall():
            if not open and not soft:
                _uncount(unit, each, down, version)
        if number % STEP == 0:
            yield
    for number, each in enumerate(found, 1):
        _reopen(unit, each)
        if number % STEP == 0:
            unit.sync()
            yield
    first = replace(unit.row(found[0].job.id), pending=0)
    if delay > 0:
        endings.schedule(unit, first, unit.now + delay)
    else:
        unit.join(first, unit.now)
    for number, each in enumerate(found[1:], 1):
        yield from _recount(unit, each.job.id)
        if number % STEP == 0:
            unit.sync()
            yield


def _would_reopen(unit: UnitOfWork, row: Record) -> Generator[None, None, list[Record]]:
    """The job, then what it doomed and every ancestor that failed because of a child, each with what that doomed."""
    found, stack, looked = {row.job.id: row}, [row], 0
    while stack:
        each = stack.pop()
        ids = [down for down, *_ in unit.ex(DESK["downs"], (each.job.id,)).fetchall()]
        related = list[Record]()
        for at in range(0, len(ids), STEP):
            part = ids[at : at + STEP]
            unit.read(part)
            downs = [unit.get(down) for down in part]
            related += [down for down in downs if down is not None and _was_doomed(down)]
            looked += len(part)
            if looked >= STEP:
                looked = 0
                yield
        parent = unit.get(each.job.parent or "")
        if parent is not None and parent.state is State.FAILED and parent.reason == CHILDREN:
            related.append(parent)
        for other in related:
            if other.job.id not in found:
                found[other.job.id] = other
                stack.append(other)
    return list(found.values())


def _was_doomed(row: Record) -> bool:
    return row.reason == UPSTREAM and row.state is State.CANCELLED


def _uncount(unit: UnitOfWork, up: Record, down: str, version: int) -> None:
    """Who waits still, and has counted this ending, waits for the next one."""
    row = unit.get(down)
    if row is None or row.state is not WAITING or version != row.version:
        return
    unit.ex(DESK["open_again"], (up.job.id, down))
    if row.failures_allowed is None or up.state is State.SUCCEEDED:
        unit.put(replace(row, pending=row.pending + 1))
    else:
        unit.put(replace(row, failures_allowed=row.failures_allowed + 1))


def _reopen(unit: UnitOfWork, row: Record) -> None:
    if row.job.key is not None:
        unit.take_key(row.job.key, row.job.id)
    function_done = row.job.function_done or row.reason == CHILDREN
    deadline_at = None if row.job.deadline is None else unit.now + row.job.deadline
    unit.put(
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
            updated_at=unit.now,
        )
    )


def _recount(unit: UnitOfWork, id: str) -> Generator[None, None, None]:
    """What it waits for now: those of its upstreams that were reopened have to end again."""
    row = unit.row(id)
    required, failures_allowed = (
        (None, None)
        if row.function_done and not row.job.function_done
        else (row.job.required, row.job.failures_allowed)
    )
    row = replace(
        row, pending=needed(required, row.after), failures_allowed=tolerated(failures_allowed, required, row.after)
    )
    unit.put(row)
    unit.many(DESK["drop_edge"], [(up, id) for up in row.after])
    yield from endings.watch_ups(unit, id, row.after)
