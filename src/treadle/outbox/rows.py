"""Jobs as text for the rows of an outbox, and back.

The text is ASCII, so the encoding of the user's connection does not change it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import ranges
from treadle.core.errors import BadOption
from treadle.core.model import NewJob, Record, State
from treadle.outbox.table import New

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(NewJob).decode


class Waiting(Struct, frozen=True, gc=False):
    """A row as the relay reads it. `age` is in seconds, by the clock of that database."""

    seq: int
    call: str | None
    text: str
    age: float
    tries: int = 0
    became: str | None = None


Call = list[Waiting]
"""The rows of one call, which the storage gets together."""


def read(row: Sequence[Any]) -> Waiting:
    return Waiting(*row)


def written(jobs: Sequence[NewJob]) -> list[New]:
    """The rows for the jobs of one call. Raises BadOption and TooLarge."""
    for job in jobs:
        ranges.check_job(job)
        if job.key is not None and job.key_conflict == "raise":
            raise BadOption(
                "key",
                'conflict="raise" cannot be answered inside your transaction, because the jobs are in another storage; '
                'use "keep" or "replace", or enqueue after your commit without within=',
            )
    call = uuid4().hex if len(jobs) > 1 else None
    return [New(job.id, text_of(job), call) for job in jobs]


def text_of(job: NewJob) -> str:
    text = _encode(job).decode()
    return text if text.isascii() else json.dumps(json.loads(text), separators=(",", ":"))


def job_of(text: str) -> NewJob:
    """Raises an error of UNREADABLE."""
    return _decode(text)


def aged(job: NewJob, age: float, keep: float) -> NewJob:
    """The job as it must be stored now, `age` seconds after its enqueue: its times count from the enqueue. Its row
    stays for at least `keep` s, so that a repeated delivery finds it."""
    fields: dict[str, Any] = {}
    if job.keep < keep:
        fields["keep"] = keep
    if job.keep_failed < keep:
        fields["keep_failed"] = keep
    if age > 0:
        if job.delay:
            fields["delay"] = max(0.0, job.delay - age)
        if job.deadline is not None:
            fields["deadline"] = max(0.0, job.deadline - age)
        if job.wait_timeout is not None:
            fields["wait_timeout"] = max(0.0, job.wait_timeout - age)
        if job.key_window is not None:
            fields["key_window"] = max(0.0, job.key_window - age)
    return replace(job, **fields) if fields else job


def calls_of(rows: Sequence[Waiting]) -> list[Call]:
    """The rows by call, in order."""
    calls: dict[object, Call] = {}
    for row in rows:
        calls.setdefault(row.call or row.seq, []).append(row)
    return list(calls.values())


def expected(job: NewJob, now: float) -> Record:
    """The row that the storage will have, as far as it is known before the delivery."""
    state = State.WAITING if job.after or not job.task else State.READY
    return Record(job=job, version=0, state=state, after=job.after, created_at=now, updated_at=now)
