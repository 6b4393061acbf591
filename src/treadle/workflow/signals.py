"""Signals and once-locks: rows without a task. The sender of a signal settles its row; the first job that stores a
lock gets it.

A signal of one name to one job has several rows, numbered by turn. The wait and the signal use the first row that is
not used up. A row is used up if the wait for it timed out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import count

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadOption, ForeignRow, Signalled
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.policy.rounds import round_of
from treadle.storage import patiently
from treadle.storage.contract import Storage

SIGNAL = "treadle:signal:"  # prefix of the ids of signal rows
ONCE_KEY = "treadle.once "  # prefix of the keys of once-locks
ONCE = "treadle:once:"  # prefix of the ids of once-locks
SEEN_AT_ONCE = 8  # rows read in one round trip


class SignalRow(Struct, frozen=True, omit_defaults=True):
    """The payload of a signal row: readable for operators, and used to tell rounds of a reopened job apart."""

    job: str
    signal: str
    reopenings: int = 0
    given: bool = False  # the sender stored the row, and may have died before settling it


class OnceLock(Struct, frozen=True):
    """The payload of a once-lock: the job that holds it."""

    job: str
    once: str


_read_lock = msgspec.json.Decoder(OnceLock).decode
_read_signal = msgspec.json.Decoder(SignalRow).decode


def signal_id(job: str, name: str, turn: int) -> str:
    """The id of the signal's row. It is a hash, because the job's own id may have the maximum length."""
    return f"{SIGNAL}{hashlib.sha256(f'{job} {name}'.encode()).hexdigest()[:40]}:{turn}"


def signal_row(row: Record, name: str, turn: int, deadline: float, given: bool = False) -> NewJob:
    """A row of a signal to this job. It belongs to the job's workflow, so it is kept until the workflow has ended."""
    payload = msgspec.json.encode(SignalRow(row.job.id, name, row.reopenings, given)).decode()
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


def check_place(stored: Record, queue: str, root: str | None, parent: str | None) -> Record:
    """The row, if queue, root and parent are those of a row that Treadle stores. Raises ForeignRow if not."""
    job = stored.job
    if job.task or job.queue != queue or job.root != root or job.parent != parent:
        raise ForeignRow(job.id, job.queue, queue)
    return stored


def check_signal(stored: Record, row: Record) -> Record:
    """The row of a signal to this job. Raises ForeignRow if another caller stored it."""
    return check_place(stored, row.job.queue, row.job.root or row.job.id, row.job.id)


def signal_name(row: Record) -> str | None:
    """The name of the signal of this row; None if the row is not a signal's, or its payload cannot be read."""
    if row.job.task or not row.job.id.startswith(SIGNAL):
        return None
    signal = _signal_of(row)
    return None if signal is None else signal.signal


def _signal_of(row: Record) -> SignalRow | None:
    """The payload of a signal row; None if another program stored something else."""
    try:
        return _read_signal(row.job.payload)
    except UNREADABLE:
        return None


def usable(stored: Record) -> bool:
    """Whether a wait may use this row: it is open, or the signal was given. Others have expired, or an operator has
    cancelled them."""
    return not stored.state.final or stored.state is State.SUCCEEDED


async def give(storage: Storage, row: Record, name: str, text: str, nonce: str, reach: tuple[str, ...] = ()) -> None:
    """Settle the first row of this signal that is not used up; store it first if the job does not wait yet.

    reach  the queues that the caller has access to; (): every queue
    Raises Signalled if the signal was given before, ForeignRow if another caller has stored its row.
    """
    for start in count(1 + round_of(row.checkpoints).turns.get(name, 0), SEEN_AT_ONCE):
        turns = range(start, start + SEEN_AT_ONCE)
        rows: Sequence[Record | None] = await storage.get([signal_id(row.job.id, name, turn) for turn in turns])
        for turn, existing in zip(turns, rows, strict=True):
            if existing is None:
                new = replace(signal_row(row, name, turn, defaults.SIGNAL_GIVEN, given=True), reach=reach)
                [existing] = await patiently(partial(storage.enqueue, [new]))
            check_signal(existing, row)
            while not existing.state.final:
                # A repeated outcome must have the same `value`, so of two senders only one gets "applied".
                out = Outcome(
                    id=existing.id,
                    version=existing.version,
                    state=State.SUCCEEDED,
                    result=text,
                    value=nonce,
                    reach=reach,
                )
                [answer] = await storage.settle([out])
                if answer.status == "applied":
                    return
                [again] = await storage.get([existing.id])
                if again is None:
                    break
                existing = again
            if existing.state is State.SUCCEEDED:
                raise Signalled(row.job.id, name)


def once_lock(id: str, row: Record, key: object, keep: float) -> NewJob:
    """The row with which a job claims a key of `once`. It is unfinished while the lock is held, at most `keep`
    seconds."""
    if not isinstance(key, str) or not 0 < len(key) <= defaults.MAX_NAME or not key.isprintable():
        raise BadOption("once", f"expected a key of 1-{defaults.MAX_NAME} printable characters, found {key!r}")
    payload = msgspec.json.encode(OnceLock(row.job.id, key)).decode()
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


def winner(stored: Record) -> str:
    """The id of the job that holds the lock; "" if the payload cannot be read."""
    try:
        return _read_lock(stored.job.payload).job
    except UNREADABLE:
        return ""
