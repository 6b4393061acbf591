"""Acting on what is due: scheduled jobs join the line, lost leases return, deadlines and waits end.

Without it nothing would happen by itself. Called by claim, heartbeat and prune; the common rows in two statements.
"""

from __future__ import annotations

from collections.abc import Generator

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.model import EXPIRED, Record, State
from treadle.storage import row_rules
from treadle.storage.sqlite import endings
from treadle.storage.sqlite.rows import AGING, LANE, LIMITS, SLOT, text
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("advance_due")
STEP = 64  # rows of the slow road between two turns of the loop


def advance_due(unit: UnitOfWork) -> Generator[None, None, None]:
    now = unit.now
    due = unit.ex(SQL["due"], (now, defaults.DUE_STEP)).fetchall()
    lanes = any(found[2] & LANE for found in due)
    scheduled, lost, slow = list[int](), list[int](), list[str]()
    for seq, id, flags, state, position, blocked_on, return_position, deadline_at, function_done, queue in due:
        over = deadline_at is not None and deadline_at <= now and not function_done
        if lanes or over or position is not None or blocked_on is not None:
            slow.append(id)
        elif state == 1 and return_position is None and not flags & AGING:
            scheduled.append(seq)
            unit.topics.add(f"queue:{queue}")
        elif state == 2 and return_position is not None and not flags & (LIMITS | SLOT):
            lost.append(seq)
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
        unit.call_in_for(key)
    unit.sync()


def _slowly(unit: UnitOfWork, ids: list[str]) -> Generator[None, None, None]:
    unit.read(ids)
    moments = {id: unit.row(id).due_at for id in ids}
    for number, id in enumerate(ids, 1):
        row = unit.row(id)
        if row.due_at == moments[id]:
            yield from _act(unit, row)
        if number % STEP == 0:
            yield


def _act(unit: UnitOfWork, row: Record) -> Generator[None, None, None]:
    """The moment of this row has come."""
    now = unit.now
    if row.deadline_at is not None and row.deadline_at <= now and not row.function_done:
        endings.end(unit, row, State.FAILED, EXPIRED, "its deadline passed")
    elif row.state is State.RUNNING:
        unit.join(row_rules.lost(row, now), now)
        unit.unblock(row)
    elif row.state is State.READY:
        unit.join(row, row.due_at or now)
    elif row.started_at is None and not row.function_done:
        # prose: ok, a stored text, the same in every storage
        endings.end(unit, row, State.FAILED, EXPIRED, "what it waited for did not come in time")
    elif row.job.task:
        unit.join(row, now)
    else:
        unit.put(replace(row, due_at=None if row.function_done else row.deadline_at))
    yield from endings.count_endings(unit)
