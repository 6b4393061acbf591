"""Converts jobs to bytes and back: fields that the scripts read at fixed offsets, and data that they carry unread.

A job has two values: `job` never changes, and `row` exists from the first claim on (from the start, if the job is not
plain or has a lane). `lua/row.lua` uses the same layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.limit_model import Limit
from treadle.core.model import NewJob, Pairs, Presence, Record, State
from treadle.core.ranges import OWN
from treadle.storage.row_rules import OWN_ID, new_record, rank

PLAIN: Final = 1
RAN: Final = 2
TAIL: Final = 4
NOTED: Final = 8  # it has checkpoints; they follow the row, and then their length (`lua/whole.lua`)
ANY: Final = 2_147_483_647  # failures_allowed: any number
NONE: Final = -1e300  # no moment

STATES: Final = tuple(State)
NUMBER: Final = {state: number for number, state in enumerate(STATES)}

RUNNING: Final = NUMBER[State.RUNNING]

_JOB: Final = struct.Struct(">BhddHHI")
_ROW: Final = struct.Struct(">BBIiiIIIdddddddddddhHH")
_READ: Final = struct.Struct(">BBIiiIII16x9d2xHH")  # the row without keep, keep_failed and rank, which the job has, too
_MADE: Final = struct.Struct(">d")
_LEASED: Final = struct.Struct(">2xI8xIII16xd8xdd8xdd18xH2x")  # the fields of a plain job that runs
_TASK: Final = struct.Struct(">BH")
_LENGTH: Final = struct.Struct(">I")
_HANDED: Final = struct.Struct(">HI")

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(NewJob).decode
decode_any = msgspec.msgpack.Decoder().decode
decode_rule = msgspec.msgpack.Decoder(Limit).decode


def until_bytes(until: float | None) -> bytes:
    """The end of a pause, as the scripts store it."""
    return b"" if until is None else repr(until).encode()


def is_plain(job: NewJob) -> bool:
    """Whether only priority, lane and limits decide when the job runs; storing or ending it affects no other job."""
    return not (
        job.key is not None
        or job.after
        or job.delay > 0
        or job.run_at is not None
        or job.function_done
        or job.aging
        or job.root is not None
        or job.parent is not None
        or job.deadline is not None
        or job.lease is not None
        or job.failures_allowed != 0
        or job.wait_timeout is not None
        or job.required is not None
        or not job.task
        or job.reach
    )


def is_bulk(job: NewJob) -> bool:
    """Whether the bulk path can store it. That script refuses no job, and a chosen id or one of Treadle's own may have
    to be refused; and it does not list system jobs."""
    is_own = job.task.startswith(OWN) or job.id.startswith(OWN_ID)
    return job.nonce is None and job.queue != SYSTEM_QUEUE and not is_own and is_plain(job)


class _Head(Struct, omit_defaults=True, gc=False):
    """The fields of a job that the scripts need besides rank, task and queue. Fields with their default are left out.
    A dict would take 3 us more."""

    limits: tuple[tuple[str, int], ...] = ()
    lane: str | None = None
    stride: float = 1.0
    failures_allowed: int | bool = 0  # False: any number
    priority: int | None = None
    aging: float = 0.0
    delay: float = 0.0
    key: str | None = None
    conflict: str | None = None
    key_window: float | None = None
    started: bool = False  # the key is free once the job has started
    after: tuple[str, ...] = ()
    required: int | None = None
    wait_timeout: float | None = None
    deadline: float | None = None
    lease: float | None = None
    function_done: bool = False
    root: str | None = None
    parent: str | None = None
    reach: tuple[str, ...] = ()
    run_at: float | None = None
    deadline_at: float | None = None
    own_labels: tuple[str, ...] = ()


def _head(job: NewJob, plain: bool) -> bytes:
    if plain:
        asks = job.limits or job.lane is not None
        return encode(_Head(job.limits, job.lane, job.stride)) if asks else b""
    failures_allowed, conflict = (
        False if job.failures_allowed is None else job.failures_allowed,
        job.key_conflict if job.key is not None else None,
    )
    return encode(
        _Head(
            job.limits,
            job.lane,
            job.stride,
            failures_allowed,
            job.priority,
            job.aging,
            job.delay,
            job.key,
            conflict,
            job.key_window,
            job.key_until == "started",
            job.after,
            job.required,
            job.wait_timeout,
            job.deadline,
            job.lease,
            job.function_done,
            job.root,
            job.parent,
            job.reach,
            job.run_at,
            job.deadline_at,
            tuple([label for label in job.labels if label.startswith(OWN_ID)]),
        )
    )


def job_bytes(job: NewJob, plain: bool) -> bytes:
    """The first value of a job without the moment of its creation, which the script appends."""
    task, queue = job.task.encode(), job.queue.encode()
    head = _head(job, plain)
    fixed = _JOB.pack(PLAIN if plain else 0, rank(job), job.keep, job.keep_failed, len(task), len(queue), len(head))
    return b"".join((fixed, task, queue, head, encode(job)))


def _body(data: bytes) -> NewJob:
    _, _, _, _, task, queue, head = _JOB.unpack_from(data)
    return decode(memoryview(data)[_JOB.size + task + queue + head : -8])


def stored(jobs: Sequence[NewJob], moment: bytes, places: bytes, *known: Any) -> list[Record]:
    """The records of a call of plain jobs. `known` (number, job, row, ...): those that were stored before. `places`:
    the positions of the new ones that have a lane."""
    now = float(moment)
    rows = [new_record(job, now) for job in jobs]
    for k in range(0, len(known), 3):
        rows[known[k] - 1] = record(known[k + 1], known[k + 2])
    if places:
        known_numbers, positions = {known[k] - 1 for k in range(0, len(known), 3)}, _MADE.iter_unpack(places)
        for number, job in enumerate(jobs):
            if job.lane is not None and number not in known_numbers:
                [position] = next(positions)
                rows[number] = replace(rows[number], queue_position=position, return_position=position)
    return rows


def _moment(value: float) -> float | None:
    return None if value == NONE else value


def record(data: bytes, row: bytes, job: NewJob | None = None) -> Record:
    """The record from the two values of a job. `job`: the NewJob, if it need not be decoded."""
    if job is None:
        job = _body(data)
    if not row:
        return new_record(job, _MADE.unpack_from(data, len(data) - 8)[0])
    if row[0] == RUNNING and row[1] == PLAIN:
        return _leased(job, row)
    (
        state,
        flags,
        version,
        pending,
        failures_allowed,
        attempt,
        lost,
        reopenings,
        created_at,
        position,
        return_position,
        due_at,
        deadline_at,
        started_at,
        updated_at,
        ended_at,
        expires_at,
        worker,
        queue,
    ) = _READ.unpack_from(row)
    after: tuple[str, ...] = job.after
    checkpoints: Pairs = ()
    blocked_on = result = value = error = reason = note = None
    if flags & TAIL:
        end = len(row)
        if flags & NOTED:
            end -= _LENGTH.size + _LENGTH.unpack_from(row, end - _LENGTH.size)[0]
            checkpoints = _sorted_checkpoints(decode_any(memoryview(row)[end : -_LENGTH.size]))
        packed = memoryview(row)[_ROW.size + worker + queue : end]
        tail = [field if field is not False else None for field in decode_any(packed)]
        after = job.after if tail[0] is None else tuple(tail[0])
        blocked_on, result, value, error, reason = tail[1:6]
        note = tail[6]
    return Record(
        job=job,
        version=version,
        state=STATES[state],
        after=after,
        pending=pending,
        failures_allowed=None if failures_allowed == ANY else failures_allowed,
        function_done=bool(flags & RAN),
        queue_position=_moment(position),
        return_position=_moment(return_position),
        due_at=_moment(due_at),
        deadline_at=_moment(deadline_at),
        attempt=attempt,
        lost=lost,
        worker=row[_ROW.size : _ROW.size + worker].decode() if worker else None,
        blocked_on=blocked_on,
        result=result,
        value=value,
        error=error,
        reason=reason,
        checkpoints=checkpoints,
        note=note,
        reopenings=reopenings,
        created_at=created_at,
        started_at=_moment(started_at),
        updated_at=updated_at,
        ended_at=_moment(ended_at),
        expires_at=_moment(expires_at),
    )


def _sorted_checkpoints(values: Sequence[str]) -> Pairs:
    """The checkpoints of `name, text, name, text, ...`. Each text begins with its number in the order."""
    numbered = []
    for name, value in zip(values[::2], values[1::2], strict=True):
        number, _, text = value.partition(":")
        numbered.append((int(number), name, text))
    return tuple([(name, text) for _, name, text in sorted(numbered)])


def _leased(job: NewJob, row: bytes) -> Record:
    """The record of a plain job that was just claimed, which has no other fields: 1.3 us instead of 2.4."""
    version, attempt, lost, reopenings, created, position, due, started, updated, worker = _LEASED.unpack_from(row)
    return Record(
        job=job,
        version=version,
        state=State.RUNNING,
        return_position=position,
        due_at=due,
        attempt=attempt,
        lost=lost,
        worker=row[_ROW.size : _ROW.size + worker].decode(),
        reopenings=reopenings,
        created_at=created,
        started_at=started,
        updated_at=updated,
    )


def row_bytes(row: Record, plain: bool, ups: Sequence[str]) -> bytes:
    """The second value of a job, as `record` reads it. `ups`: the jobs for which it waited earlier."""
    job, worker = row.job, (row.worker or "").encode()
    same, flags, tail, checkpoints = row.after == job.after, PLAIN if plain else 0, b"", b""
    if row.function_done:
        flags |= RAN
    if plain and row.state is State.RUNNING:
        task = job.task.encode()
        tail = encode(job.limits) + _TASK.pack(0xDA, len(task)) + task  # msgpack; `settle.lua` skips 3 bytes
    elif plain and job.limits:
        tail = encode(job.limits)
    texts = (row.blocked_on, row.result, row.value, row.error, row.reason)
    if not same or row.checkpoints or row.note is not None or ups or any(text is not None for text in texts):
        flags |= TAIL
        rest = or_false(row.note), list(ups) or False
        tail = encode((False if same else row.after, *map(or_false, texts), *rest))
    if row.checkpoints:
        flags |= NOTED
        values = [word for n, (name, text) in enumerate(row.checkpoints) for word in (name, f"{n}:{text}")]
        checkpoints = encode(values)
        checkpoints += _LENGTH.pack(len(checkpoints))
    queue, failures_allowed = job.queue.encode(), ANY if row.failures_allowed is None else row.failures_allowed
    counts = row.version, row.pending, failures_allowed, row.attempt, row.lost, row.reopenings
    positions = row.queue_position, row.return_position, row.due_at, row.deadline_at, row.started_at
    moments = row.created_at, *positions, row.updated_at, row.ended_at, row.expires_at
    lengths = rank(job), len(worker), len(queue)
    times = job.keep, job.keep_failed, *map(_or_none, moments)
    return b"".join((_ROW.pack(NUMBER[row.state], flags, *counts, *times, *lengths), worker, queue, tail, checkpoints))


def _or_none(moment: float | None) -> float:
    return NONE if moment is None else moment


def in_doubles(value: float) -> bytes:
    """A moment as 8 bytes, as at the end of a job's first value."""
    return _MADE.pack(value)


def moment_of(data: bytes) -> float:
    """A moment from a script's answer. As text it would cost the server 4,000 instructions."""
    moment: float = _MADE.unpack(data)[0]
    return moment


def doubles(data: bytes) -> tuple[float, float, float]:
    """The tokens of a bucket, when it had them, and since when it counts starts."""
    since = _MADE.unpack_from(data, 16)[0] if len(data) > 16 else 0.0  # an older process stores no third number
    return _MADE.unpack_from(data)[0], _MADE.unpack_from(data, 8)[0], since


_presence = msgspec.msgpack.Decoder(Presence).decode


def decode_presence(data: bytes) -> tuple[Presence, float]:
    """A worker, and the moment of its last heartbeat."""
    return _presence(memoryview(data)[8:]), _MADE.unpack_from(data)[0]


def handed(data: bytes) -> tuple[str, Record]:
    """The message of a hand-off (`hand_off.lua`): the claim id, and the job claimed under it."""
    claim_id, body = _HANDED.unpack_from(data)
    body_start = _HANDED.size + claim_id
    return data[_HANDED.size : body_start].decode(), record(
        data[body_start : body_start + body], data[body_start + body :]
    )


def pairs(rows: Sequence[bytes], start: int = 0) -> list[Record]:
    """`job, row, job, row, ...` as records."""
    return [record(rows[k], rows[k + 1]) for k in range(start, len(rows), 2)]


def or_false(value: str | None) -> str | bool:
    return False if value is None else value
