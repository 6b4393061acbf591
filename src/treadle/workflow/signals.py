"""Signals and marks: rows that nobody runs. A signal's row is settled by whoever gives the signal; a mark is won by
whoever stores it first.

Without it a job could only wait for jobs, not for a person; and nobody could say "I do this, the others need not".

A signal of a name to a job has rows in turn, each under an id made of job, name and turn. The first that is not used
up is where a wait and a signal meet, whichever comes first. A row is used up when a wait's time ran out on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.model import EXPIRED, NewJob, Outcome, Record, State
from treadle.errors import UNREADABLE, BadOption, ForeignRow, Signalled
from treadle.storage.contract import Storage

SIGNAL = "treadle:signal:"  # ids of such rows begin so
ONCE_KEY = "treadle.once "  # what the keys of marks begin with
ONCE = "treadle:once:"  # ids of marks begin so
SEEN_AT_ONCE = 8  # turns looked at in one trip


class Wanted(Struct, frozen=True, omit_defaults=True):
    """The payload of a signal's row: for people who look at it, and for telling rounds apart."""

    job: str
    signal: str
    round: int = 0
    given: bool = False  # made by whoever gives it, who may have died before he did


class Won(Struct, frozen=True):
    """The payload of a mark: who has won it."""

    job: str
    once: str


_read_won = msgspec.json.Decoder(Won).decode
_read_wanted = msgspec.json.Decoder(Wanted).decode


def signal_id(job: str, name: str, turn: int) -> str:
    """Where the signal is found; no longer than an id may be, whatever the job's own is."""
    return f"{SIGNAL}{hashlib.sha256(f'{job} {name}'.encode()).hexdigest()[:40]}:{turn}"


def signal_row(row: Record, name: str, turn: int, deadline: float, given: bool = False) -> NewJob:
    """The row of a signal to this job. It belongs to the workflow, so it stays for as long as that is not over."""
    payload = msgspec.json.encode(Wanted(row.job.id, name, row.round, given)).decode()
    return NewJob(
        id=signal_id(row.job.id, name, turn),
        task="",
        payload=payload,
        queue=row.job.queue,
        root=row.job.root or row.job.id,
        parent=row.job.id,
        deadline=deadline,
        keep_failed=0.0,
    )


def check_place(found: Record, queue: str, root: str | None, parent: str | None) -> Record:
    """The row, if it is where a row of ours with this id or key belongs. Raises ForeignRow if it is elsewhere."""
    job = found.job
    if job.task or job.queue != queue or job.root != root or job.parent != parent:
        raise ForeignRow(job.id, job.queue, queue)
    return found


def check_signal(found: Record, row: Record) -> Record:
    """The row of a signal to this job. Raises ForeignRow if another caller stored it."""
    return check_place(found, row.job.queue, row.job.root or row.job.id, row.job.id)


def signal_name(row: Record) -> str | None:
    """Which signal this row stands for; None if it is no signal's, or does not say which."""
    if row.job.task or not row.job.id.startswith(SIGNAL):
        return None
    asked = _wanted(row)
    return None if asked is None else asked.signal


def _wanted(row: Record) -> Wanted | None:
    """What a signal's row says; None where a program has stored something else."""
    try:
        return _read_wanted(row.job.payload)
    except UNREADABLE:
        return None


def usable(found: Record, row: Record, timed: bool) -> bool:
    """Whether a wait of this job may end with this row of a signal: it is open, given, or (`timed`) its time ran out on
    this very wait. Rows of an earlier round, or taken away by hand, are nobody's any more."""
    if not found.state.final or found.state is State.SUCCEEDED:
        return True
    asked = _wanted(found)
    return asked is not None and timed and found.reason == EXPIRED and asked.round == row.round and not asked.given


async def give(storage: Storage, row: Record, name: str, text: str, nonce: str, reach: tuple[str, ...] = ()) -> None:
    """Settle the first row of this signal that is not used up, and make it first if the job does not wait yet.

    reach  the queues that the caller has a right to; (): every queue
    Raises Signalled if it was given before, ForeignRow if another caller has stored its row.
    """
    for start in count(1, SEEN_AT_ONCE):
        turns = range(start, start + SEEN_AT_ONCE)
        rows: Sequence[Record | None] = await storage.get([signal_id(row.job.id, name, turn) for turn in turns])
        for turn, found in zip(turns, rows, strict=True):
            if found is None:
                new = replace(signal_row(row, name, turn, defaults.SIGNAL_GIVEN, given=True), reach=reach)
                [found] = await storage.enqueue([new])
            check_signal(found, row)
            while not found.state.final:
                # `value` is compared when an outcome is repeated: two givers are never both told that they were first.
                out = Outcome(
                    id=found.id, version=found.version, state=State.SUCCEEDED, result=text, value=nonce, reach=reach
                )
                [answer] = await storage.settle([out])
                if answer.status == "applied":
                    return
                [again] = await storage.get([found.id])
                if again is None:
                    break
                found = again
            if found.state is State.SUCCEEDED:
                raise Signalled(row.job.id, name)


def mark(id: str, row: Record, key: object, keep: float) -> NewJob:
    """The row by which a job claims a key of `once`: unfinished while it holds, and over after `keep` seconds."""
    if not isinstance(key, str) or not 0 < len(key) <= defaults.MAX_NAME or not key.isprintable():
        raise BadOption("once", f"expected a key of 1-{defaults.MAX_NAME} printable characters, found {key!r}")
    payload = msgspec.json.encode(Won(row.job.id, key)).decode()
    return NewJob(
        id=id,
        task="",
        queue=row.job.queue,
        key=f"{ONCE_KEY}{key}",
        payload=payload,
        deadline=keep,
        keep=0.0,
        keep_failed=0.0,
    )


def winner(found: Record) -> str:
    """The job that has won the mark; "" where the row does not say."""
    try:
        return _read_won(found.job.payload).job
    except UNREADABLE:
        return ""
