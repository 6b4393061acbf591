"""The rows of `current().lock(name)`: a turn for each job that has the lock or waits for it, and a line for each name.

A turn waits for the ending of its job and for the turn before it. So a turn has ended as soon as nobody up to its job
has the lock, or waits for it, whatever ends these jobs. The job that leaves the lock ends its turn itself; otherwise
any worker ends the row, as it ends the rows of flows.

The line knows the last turn, and the number of that turn's owner. It has the key of the name, waits for the last turn,
and ends with it. A job that leaves a lock for which nobody waits keeps the line for a day, so that the numbers rise.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.errors import UNREADABLE
from treadle.core.model import ACT, LINE, NewJob, Outcome, Record, State
from treadle.workflow.plan import FLOW, EndingPlan, plan_of_job, root_of

LOCK: Final = "treadle:lock:"  # prefix of the ids of these rows
TURN: Final = f"{LOCK}turn:"
LOCK_KEY: Final = "treadle.lock "  # prefix of the keys of lines
HEADER: Final = "treadle:lock"  # the header with a `LockRow`: operators read it without keys
IDLE: Final = 86_400.0  # s for which the line of a free lock is kept
ENDED: Final = 3_600.0  # s for which a turn that has ended is kept: a job that waits for it must still find it
PLAN: Final = EndingPlan(mark="lock")


class LockRow(Struct, frozen=True, omit_defaults=True):
    """The header of these rows.

    job     the job of a turn; "": this is a line
    line    the line of a turn
    number  the number of its owner; 0: that of the first turn of a line, which depends on the line's row
    """

    lock: str
    job: str = ""
    line: str = ""
    number: int = 0


class LastTurn(Struct, frozen=True):
    """The content of `LINE`. `turn`: "" if the lock is free."""

    turn: str
    number: int


_read_header = msgspec.json.Decoder(LockRow).decode
_read_last = msgspec.json.Decoder(LastTurn).decode


def turn_stem(row: Record) -> str:
    """The beginning of the ids of the turns of this job. A job that was reopened has other turns."""
    return f"{TURN}{ids.digest(row.job.id, row.reopenings)[:20]}-"


def turn_row(id: str, row: Record, lock: LockRow, ahead: str = "") -> NewJob:
    """The turn of this job, behind the turn `ahead`."""
    after = (row.job.id, ahead) if ahead else (row.job.id,)
    return root_of(id, PLAN, after, queue=row.job.queue, keep=ENDED, keep_failed=ENDED, headers=_headers(lock))


def line_row(id: str, row: Record, name: str, turn: str) -> NewJob:
    """The line of a lock that this turn begins. Nothing is stored if there is a line already."""
    lock = LockRow(name)
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


def _headers(lock: LockRow) -> tuple[tuple[str, str], ...]:
    return ((HEADER, msgspec.json.encode(lock).decode()),)


def lock_of(job: NewJob) -> LockRow | None:
    """The header of a turn or a line; None: the row is neither."""
    if job.task != FLOW or not job.id.startswith(LOCK):
        return None
    try:
        return _read_header(dict(job.headers).get(HEADER, "")) if plan_of_job(job) == PLAN else None
    except UNREADABLE:  # another program has stored it
        return None


def is_line(row: Record, name: str) -> bool:
    """Whether this row is the line of that lock."""
    return lock_of(row.job) == LockRow(name) and row.job.key == f"{LOCK_KEY}{name}"


def ahead_of(turn: Record) -> str:
    """The turn for which this one waits; "": it is the first."""
    return next((up for up in turn.after if up.startswith(TURN)), "")


def last_turn(line: Record) -> LastTurn:
    """The last turn of a line."""
    text = dict(line.checkpoints).get(LINE)
    return LastTurn(line.job.after[0], first_number(line)) if text is None else _read_last(text)


def first_number(line: Record) -> int:
    """The number of the first owner: when the line was stored, in microseconds since 1970 by the storage's clock."""
    return int(line.created_at * 1e6)


def appended(line: Record, turn: NewJob, number: int) -> Outcome:
    """The turn becomes the last one of the line: it is stored with this outcome."""
    return Outcome(
        id=line.id,
        version=line.version,
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


def freed(line: Record, last: LastTurn) -> Outcome:
    """The line after its last turn was ended."""
    return Outcome(
        id=line.id,
        version=line.version,
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
    # Two jobs may change one version of a line at the same time: by `ACT` a storage tells their outcomes apart.
    return (ACT, act), (LINE, msgspec.json.encode(last).decode())
