"""A job as columns and back: the flags of a row, the body, the record."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.limit_model import Limit
from treadle.core.model import NewJob, Presence, Record, State
from treadle.storage.admission import Asker
from treadle.storage.row_rules import rank

DOWN: Final = 1  # a job waits, or waited, for it: its ending must be counted
KEY: Final = 2  # it has a key
STARTED: Final = 4  # it frees its key when it is claimed
LIMITS: Final = 8  # it names limits
SLOT: Final = 16  # it has rows in `slot`
LANE: Final = 32
AGING: Final = 64
LABELS: Final = 128
CHECKPOINTS: Final = 256  # it has rows in `checkpoints`
MORE: Final = 512  # columns are set that a claim does not read for a plain row
LEASE: Final = 1024  # it has a lease of its own
AFTER: Final = 2048  # it has waited for jobs: rows in `edge`
INSTANT: Final = 4096  # it starts at an instant

SLOW_CLAIM: Final = STARTED | LIMITS | SLOT
SLOW_END: Final = DOWN | KEY | LIMITS | SLOT

STATES: Final = tuple(State)
NUMBER: Final = {state: number for number, state in enumerate(STATES)}

to_json = msgspec.json.Encoder().encode
from_json = msgspec.json.Decoder().decode
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(NewJob).decode
_decode_many = msgspec.msgpack.Decoder(list[NewJob]).decode
decode_rule = msgspec.msgpack.Decoder(Limit).decode
decode_bounds = msgspec.json.Decoder(dict[str, Limit]).decode
decode_presence = msgspec.msgpack.Decoder(Presence).decode

COLUMNS: Final = (  # fields of a Record that are stored as they are
    *("version", "pending", "failures_allowed", "queue_position", "return_position", "due_at", "deadline_at"),
    *("attempt", "lost", "worker", "blocked_on", "result", "value", "error", "reason", "note", "reopenings"),
    *("created_at", "started_at", "updated_at", "ended_at", "expires_at"),
)
FULL: Final = ", ".join(
    ("j.seq", "j.flags", "b.body", "j.state", "j.after", "j.function_done", *(f"j.{name}" for name in COLUMNS))
)


CHECKPOINTS_OF: Final = (
    "SELECT job, name, value FROM checkpoints WHERE job IN (SELECT value FROM json_each(?)) ORDER BY num"
)
OWN_CHECKPOINTS: Final = CHECKPOINTS_OF.replace(" ORDER", " AND name >= 'treadle:' AND name < 'treadle;' ORDER")


def text(value: Any) -> str:
    """JSON for json_each in a statement. Only strings and integers: SQLite may change the last bit of a float."""
    return to_json(value).decode()


def run_of(seqs: Sequence[int]) -> tuple[int, int] | None:
    """The first and last of row numbers that are consecutive; None if they are not."""
    first, last = seqs[0], seqs[-1]
    return (first, last) if seqs == list(range(first, last + 1)) else None


def numbers_text(seqs: Sequence[int]) -> str:
    """Row numbers as JSON. Most claims take consecutive rows, and a full list of 256 would need a page of its own."""
    run = run_of(seqs)
    return text(seqs if run is None else [run])


def numbers(stored: str) -> list[int]:
    """The row numbers that `numbers_text` wrote."""
    seqs: list[int] = []
    for part in from_json(stored):
        seqs += [part] if isinstance(part, int) else range(part[0], part[1] + 1)
    return seqs


def decode_all(bodies: Iterable[bytes]) -> list[NewJob]:
    """Decode many bodies at once, joined to one array with a header in front: 0.4 us a job instead of 0.8."""
    parts = list(bodies)
    return _decode_many(b"\xdd" + len(parts).to_bytes(4) + b"".join(parts))


def flags_of(job: NewJob) -> int:
    """The flags that a NewJob sets; the others depend on the row and are set when it is written."""
    flags = 0
    if job.key is not None:
        flags |= KEY | (STARTED if job.key_until == "started" else 0)
    if job.limits:
        flags |= LIMITS
    if job.lane is not None:
        flags |= LANE
    if job.aging:
        flags |= AGING
    if job.labels:
        flags |= LABELS
    if job.lease is not None:
        flags |= LEASE
    if job.after:
        flags |= AFTER
    if job.run_at is not None:
        flags |= INSTANT
    return flags


def more(row: Record) -> bool:
    """Whether a claim must read more columns of this row than of a plain one."""
    return bool(
        row.function_done
        or row.after
        or row.pending
        or row.failures_allowed != 0
        or row.reopenings
        or row.deadline_at is not None
        or row.result is not None
        or row.value is not None
        or row.error is not None
        or row.reason is not None
        or row.note is not None
        or row.blocked_on is not None
    )


def is_plain(job: NewJob) -> bool:
    """Whether storing a job writes nothing but its own row. Its limits are checked when it is claimed."""
    return not (
        job.key is not None
        or job.after
        or job.run_at is not None
        or job.labels
        or job.lane is not None
        or job.function_done
        or job.aging
        or job.root is not None
        or job.parent is not None
        or job.deadline_at is not None
        or job.lease is not None
        or job.failures_allowed != 0
        or not job.task
        or job.nonce is not None
        or job.reach
    )


def after_text(row: Record) -> str | None:
    return None if row.after == row.job.after else text(row.after)


_FIRST = attrgetter(
    *("queue_position", "return_position", "due_at", "created_at", "updated_at", "function_done", "pending"),
    *("failures_allowed", "deadline_at"),
)


def inserted(row: Record, seq: int, flags: int, key: str | None) -> tuple[Any, ...]:
    """The parameters of enqueue.sql `add_any`."""
    job = row.job
    keep = None if job.keep == defaults.KEEP else job.keep
    keep_failed = None if job.keep_failed == defaults.KEEP_FAILED else job.keep_failed
    name = (seq, job.id, job.queue, job.task, rank(job), flags, NUMBER[row.state])
    return (*name, *_FIRST(row), keep, keep_failed, key, job.lane, job.root, job.parent, after_text(row))


_CHANGED = attrgetter(
    *("version", "pending", "failures_allowed", "function_done", "queue_position", "return_position", "due_at"),
    *("deadline_at", "attempt", "lost", "worker", "blocked_on", "result", "value", "error", "reason", "note"),
    *("reopenings", "started_at", "updated_at", "ended_at", "expires_at"),
)


def checkpoints_of(
    db: sqlite3.Connection, seqs: Collection[int], whole: bool = True
) -> dict[int, list[tuple[str, str]]]:
    """The checkpoints of these rows, in the order in which each name was stored first. `whole`: see `Query`."""
    known: dict[int, list[tuple[str, str]]] = {}
    statement = CHECKPOINTS_OF if whole else OWN_CHECKPOINTS
    for seq, name, value in db.execute(statement, (text(list(seqs)),)) if seqs else ():
        known.setdefault(seq, []).append((name, value))
    return known


def whole(db: sqlite3.Connection, rows: Sequence[Record], seqs: Mapping[str, int]) -> list[Record]:
    """The rows with their checkpoints. `seqs`: the numbers of the rows that have any, by id."""
    known = checkpoints_of(db, seqs.values()) if seqs else {}
    pairs = {id: tuple(known[seq]) for id, seq in seqs.items() if seq in known}
    return [replace(row, checkpoints=pairs[row.job.id]) if row.job.id in pairs else row for row in rows]


def asker(job: NewJob, position: float, key: str, kept: bool, is_blocked: bool) -> Asker:
    return Asker((-rank(job), position, job.id), dict(job.limits)[key], kept, is_blocked)


def updated(row: Record, seq: int, flags: int) -> tuple[Any, ...]:
    """The parameters of unit_of_work.sql `put`."""
    return (flags, NUMBER[row.state], *_CHANGED(row), after_text(row), seq)


def record(columns: tuple[Any, ...], checkpoints: tuple[tuple[str, str], ...] = ()) -> Record:
    """A row as read by FULL."""
    _, _, body, state, after, function_done, *others = columns
    job = decode(body)
    return Record(
        job=job,
        state=STATES[state],
        after=job.after if after is None else tuple(from_json(after)),
        function_done=bool(function_done),
        checkpoints=checkpoints,
        **dict(zip(COLUMNS, others)),  # noqa: B905 (one for each; `strict` costs 0.1 us)
    )
