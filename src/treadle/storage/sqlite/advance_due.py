"""Acts on due rows: scheduled jobs and expired leases of plain rows in two statements, other rows one by one.

Claim, heartbeat and prune call it.
"""

from __future__ import annotations

from collections.abc import Generator

from treadle.core import defaults
from treadle.storage.count_groups import QUEUED, RUNNING, SCHEDULED
from treadle.storage.machine.due import advance_row
from treadle.storage.machine.limits import unblock_limit
from treadle.storage.machine.rows import STEP
from treadle.storage.sqlite.rows import AGING, LANE, LIMITS, SLOT, text
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("advance_due")


def advance_due(unit: UnitOfWork) -> Generator[None, None, None]:
    now = unit.now
    due = unit.ex(SQL["due"], (now, defaults.DUE_STEP)).fetchall()
    lanes = any(row[2] & LANE for row in due)
    scheduled: list[int] = []
    lost: list[int] = []
    slow: list[str] = []
    for seq, id, flags, state, position, blocked_on, return_position, deadline_at, function_done, queue, task in due:
        over = deadline_at is not None and deadline_at <= now and not function_done
        if lanes or over or position is not None or blocked_on is not None:
            slow.append(id)
        elif state == 1 and return_position is None and not flags & AGING:
            scheduled.append(seq)
            unit.counts.move(queue, task, SCHEDULED, QUEUED)
            unit.topics.add(f"queue:{queue}")
        elif state == 2 and return_position is not None and not flags & (LIMITS | SLOT):
            lost.append(seq)
            unit.counts.move(queue, task, RUNNING, QUEUED)
            unit.topics.add(f"queue:{queue}")
        else:
            slow.append(id)
    if scheduled or lost:
        unit.forget_all()
    if scheduled:
        unit.ex(SQL["join_scheduled"], (text(scheduled),))
    if lost:
        unit.ex(SQL["return_lost"], (now, text(lost)))
    yield from _slowly(unit, slow)
    for (key,) in unit.ex(SQL["openings"], (now,)).fetchall():
        unblock_limit(unit, key)
    unit.sync()


def _slowly(unit: UnitOfWork, ids: list[str]) -> Generator[None, None, None]:
    unit.read(ids)
    moments = {id: unit.row(id).due_at for id in ids}
    for number, id in enumerate(ids, 1):
        row = unit.row(id)
        if row.due_at == moments[id]:
            yield from advance_row(unit, row)
        if number % STEP == 0:
            yield
