"""The rows of mailboxes and once-locks, which have no task. The first job that stores a lock gets it.

A mailbox is a name of one job, for signals and messages. Its rows are numbered by turn. A sender stores the first row
that is free, with the value, or settles it with the value if the job waits there. A row is used up if it has a value,
or if the wait for it timed out.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadOption, ForeignRow
from treadle.core.model import NewJob, Record, State

SIGNAL = "treadle:signal:"  # prefix of the ids of signal rows
ONCE_KEY = "treadle.once "  # prefix of the keys of once-locks
ONCE = "treadle:once:"  # prefix of the ids of once-locks
SEEN_AT_ONCE = 8  # rows read in one round trip


class SignalRow(Struct, frozen=True, omit_defaults=True):
    """The header of a row of a mailbox, which operators read.

    given  a sender stored the row, with the value; otherwise the wait of the job did
    ask    the tag of the row that takes the answer; "": the sender waits for none
    """

    job: str
    signal: str
    given: bool = False
    ask: str = ""


class OnceLock(Struct, frozen=True):
    """The payload of a once-lock: the job that holds it."""

    job: str
    once: str


HEADER = "treadle:signal"  # the header with a `SignalRow`: an operator reads it without keys
_read_lock = msgspec.json.Decoder(OnceLock).decode
_read_signal = msgspec.json.Decoder(SignalRow).decode


def signal_id(job: str, name: str, turn: int) -> str:
    """The id of the signal's row. It is a hash, because the job's own id may have the maximum length. No id contains a
    space, so the text of another job and name is another one."""
    return f"{SIGNAL}{hashlib.sha256(f'{job} {name}'.encode()).hexdigest()[:40]}:{turn}"


def signal_row(row: Record, name: str, turn: int, deadline: float) -> NewJob:
    """The row that a job waits for until a sender settles it with a value."""
    return mailbox_row(SignalRow(row.job.id, name), turn, row.job, deadline)


def mailbox_row(header: SignalRow, turn: int, job: NewJob, deadline: float, payload: str = "[]") -> NewJob:
    """A row of a mailbox of this job. It belongs to the job's workflow, so it is kept until the workflow has ended, or
    until the job has received it and settles it with `keep=0`."""
    return NewJob(
        id=signal_id(job.id, header.signal, turn),
        task="",
        payload=payload,
        queue=job.queue,
        root=job.root or job.id,
        parent=job.id,
        deadline=deadline,
        keep_failed=defaults.KEEP,
        headers=((HEADER, msgspec.json.encode(header).decode()),),
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
    """The name of the signal of this row; None if the row is not a signal's, or its header cannot be read."""
    if row.job.task or not row.job.id.startswith(SIGNAL):
        return None
    signal = header_of(row.job)
    return None if signal is None else signal.signal


def header_of(job: NewJob) -> SignalRow | None:
    """The header of a row of a mailbox; None if another program stored something else."""
    try:
        return _read_signal(dict(job.headers).get(HEADER, ""))
    except UNREADABLE:
        return None


def is_message(stored: Record) -> bool:
    """Whether the row has a value that the job may receive. A row that its sender stored has it, whatever became of the
    sender, unless an operator has cancelled the row."""
    if stored.result is not None:
        return stored.state is State.SUCCEEDED
    signal = header_of(stored.job)
    return signal is not None and signal.given and stored.state is not State.CANCELLED


def usable(stored: Record) -> bool:
    """Whether a wait may use this row: it is open, or it has a value. Others have expired, or an operator has cancelled
    them."""
    return not stored.state.final or is_message(stored)


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
