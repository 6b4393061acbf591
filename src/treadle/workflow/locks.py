"""The rows of `current().lock(name)`: one for each name, and a turn for each job that has the lock or waits for it.

A turn waits for the ending of its job and for the turn before it. So a turn has ended as soon as no job up to its own
has the lock, or waits for it, whatever ends these jobs. The job that leaves the lock ends its turn itself; otherwise
any worker ends the row, as it ends the rows of flows.

The row of a lock names the last turn and its number. It has the key of the name, waits for the last turn, and ends with
it. A job that leaves a lock for which no job waits keeps that row for a day, so that the numbers rise.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.errors import UNREADABLE
from treadle.core.model import ACT, LAST_TURN, NewJob, Outcome, Record, State
from treadle.workflow.plan import FLOW, EndingPlan, plan_of_job, root_of

LOCK: Final = "treadle:lock:"  # prefix of the ids of these rows
TURN: Final = f"{LOCK}turn:"
LOCK_KEY: Final = "treadle.lock "  # prefix of the keys of locks
HEADER: Final = "treadle:lock"  # the header with a `LockHeader`: operators read it without keys
IDLE: Final = 86_400.0  # s for which the row of a free lock is kept
ENDED: Final = 3_600.0  # s for which a turn that has ended is kept: a job that waits for it must still find it
PLAN: Final = EndingPlan(mark="lock")


class LockHeader(Struct, frozen=True, omit_defaults=True):
    """The header of these rows.

    job     the job of a turn; "": this is the row of a lock
    row     of a turn, the row of its lock
    number  the number of its owner; 0: of the first turn, whose number is that of the row
    """

    lock: str
    job: str = ""
    row: str = ""
    number: int = 0


class LastTurn(Struct, frozen=True):
    """The content of `LAST_TURN`. `turn`: "" if the lock is free."""

    turn: str
    number: int


_read_header = msgspec.json.Decoder(LockHeader).decode
_read_last = msgspec.json.Decoder(LastTurn).decode


def turn_stem(row: Record) -> str:
    """The beginning of the ids of the turns of this job. A job that was reopened has other turns."""
    return f"{TURN}{ids.digest(row.job.id, row.reopenings)[:20]}-"


def turn_row(id: str, row: Record, lock: LockHeader, ahead: str = "") -> NewJob:
    """The turn of this job, after the turn `ahead`."""
    after = (row.job.id, ahead) if ahead else (row.job.id,)
    return root_of(id, PLAN, after, queue=row.job.queue, keep=ENDED, keep_failed=ENDED, headers=_headers(lock))


def lock_row(id: str, row: Record, name: str, turn: str) -> NewJob:
    """The row of a lock whose first turn is this one. Nothing is stored if the lock has a row already."""
    lock = LockHeader(name)
    return root_of(
        id,
        PLAN,
        (turn,),
        queue=row.job.queue,
        key=f"{LOCK_KEY}{name}",
        key_conflict="raise",
        keep=0.0,
        keep_failed=0.0,
        headers=_headers(lock),
    )


def _headers(lock: LockHeader) -> tuple[tuple[str, str], ...]:
    return ((HEADER, msgspec.json.encode(lock).decode()),)


def lock_of(job: NewJob) -> LockHeader | None:
    """The header of a turn or of the row of a lock; None: the row is neither, or another program has stored it."""
    if job.task != FLOW or not job.id.startswith(LOCK) or (job.root, job.parent) != (None, None):
        return None
    try:
        lock = _read_header(dict(job.headers).get(HEADER, ""))
        is_ours = plan_of_job(job) == PLAN
    except UNREADABLE:
        return None
    if job.id.startswith(TURN):
        turns = job.after[1:]
        is_ours &= job.after[:1] == (lock.job,) and len(turns) < 2 and job.key is None
    else:
        turns = job.after
        is_ours &= not lock.job and len(turns) == 1 and job.key == f"{LOCK_KEY}{lock.lock}"
    return lock if is_ours and all(turn.startswith(TURN) for turn in turns) else None


def is_lock_row(row: Record, name: str) -> bool:
    """Whether this is the row of that lock."""
    return lock_of(row.job) == LockHeader(name)


def is_free(row: Record) -> bool:
    """Whether this is the row of a lock that no job has or waits for."""
    return row.state is State.READY and row.queue_position is None and lock_of(row.job) is not None


def ahead_of(turn: Record) -> str:
    """The turn for which this one waits; "": it is the first."""
    return next((up for up in turn.after if up.startswith(TURN)), "")


def last_turn(row: Record) -> LastTurn:
    """The last turn of a lock."""
    text = dict(row.checkpoints).get(LAST_TURN)
    return LastTurn(row.job.after[0], first_number(row)) if text is None else _read_last(text)


def first_number(row: Record) -> int:
    """The number of the first owner: when its row was stored, in microseconds since 1970 by the storage's clock."""
    return int(row.created_at * 1e6)


def appended(row: Record, turn: NewJob, number: int) -> Outcome:
    """The turn becomes the last one: it is stored with this outcome."""
    return Outcome(
        id=row.id,
        version=row.version,
        state=State.WAITING,
        after=(turn.id,),
        failures_allowed=None,
        function_done=True,
        followups=(turn,),
        checkpoints=_noted(turn.id, LastTurn(turn.id, number)),
    )


def ended(turn: str) -> Outcome:
    """The job leaves the lock."""
    return Outcome(id=turn, version=0, state=State.SUCCEEDED)


def freed(row: Record, last: LastTurn) -> Outcome:
    """The row of a lock whose last turn was ended."""
    return Outcome(
        id=row.id,
        version=row.version,
        state=State.READY,
        delay=IDLE,
        function_done=True,
        checkpoints=_noted(f"ended {last.turn}", LastTurn("", last.number)),
    )


def given_up(turn: Record) -> Outcome:
    """The job waits for the lock no longer: its turn ends with the one before it."""
    ahead = ahead_of(turn)
    if not ahead:
        return replace(ended(turn.id), version=turn.version)
    return Outcome(
        id=turn.id,
        version=turn.version,
        state=State.WAITING,
        after=(ahead,),
        failures_allowed=None,
        function_done=True,
    )


def _noted(act: str, last: LastTurn) -> tuple[tuple[str, str], ...]:
    # Two jobs may change one version of a row at the same time: by `ACT` a storage tells their outcomes apart.
    return (ACT, act), (LAST_TURN, msgspec.json.encode(last).decode())
