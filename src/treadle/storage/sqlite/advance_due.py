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
from treadle.storage.sqlite.unit_of_work import Desk

SQL = load("advance_due")
STEP = 64  # rows of the slow road between two turns of the loop


def tend(desk: Desk) -> Generator[None, None, None]:
    now = desk.now
    due = desk.ex(SQL["due"], (now, defaults.TEND_STEP)).fetchall()
    lanes = any(found[2] & LANE for found in due)
    scheduled, lost, slow = list[int](), list[int](), list[str]()
    for seq, id, flags, state, place, parked, joined_at, deadline_at, ran, queue in due:
        over = deadline_at is not None and deadline_at <= now and not ran
        if lanes or over or place is not None or parked is not None:
            slow.append(id)
        elif state == 1 and joined_at is None and not flags & AGING:
            scheduled.append(seq)
            desk.topics.add(f"queue:{queue}")
        elif state == 2 and joined_at is not None and not flags & (LIMITS | SLOT):
            lost.append(seq)
            desk.topics.add(f"queue:{queue}")
        else:
            slow.append(id)
    if scheduled or lost:
        desk.forget_all()
    if scheduled:
        desk.ex(SQL["join_scheduled"], (text(scheduled),))
    if lost:
        desk.ex(SQL["return_lost"], (now, text(lost)))
    yield from _slowly(desk, slow)
    for (key,) in desk.ex(SQL["openings"], (now,)).fetchall():
        desk.call_in_for(key)
    desk.sync()


def _slowly(desk: Desk, ids: list[str]) -> Generator[None, None, None]:
    desk.read(ids)
    moments = {id: desk.row(id).due_at for id in ids}
    for number, id in enumerate(ids, 1):
        row = desk.row(id)
        if row.due_at == moments[id]:
            yield from _act(desk, row)
        if number % STEP == 0:
            yield


def _act(desk: Desk, row: Record) -> Generator[None, None, None]:
    """The moment of this row has come."""
    now = desk.now
    if row.deadline_at is not None and row.deadline_at <= now and not row.ran:
        endings.end(desk, row, State.FAILED, EXPIRED, "its deadline passed")
    elif row.state is State.RUNNING:
        desk.join(row_rules.lost(row, now), now)
        desk.call_in(row)
    elif row.state is State.READY:
        desk.join(row, row.due_at or now)
    elif row.started_at is None and not row.ran:
        endings.end(desk, row, State.FAILED, EXPIRED, "what it waited for did not come in time")
    elif row.job.task:
        desk.join(row, now)
    else:
        desk.put(replace(row, due_at=None if row.ran else row.deadline_at))
    yield from endings.count_endings(desk)
