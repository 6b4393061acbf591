"""Bounds the answer to a claim in bytes: a worker that cannot read its answer would never run the jobs it was leased.

The jobs that do not fit go back to their turn at once, uncounted, and a later claim takes them.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.core.model import Claimed, Outcome, Record
from treadle.policy import judge
from treadle.server.time_slices import TimeSlices
from treadle.storage.contract import Storage
from treadle.storage.messages import AllSettled
from treadle.workflow.fold import failure

FRAME: Final = 1_024  # bytes of an answer beside its rows and outcomes
SHORT: Final = 8_192  # characters of all other fields: names, keys, numbers
LARGE: Final = "too large for its worker"

_encode = msgspec.json.Encoder().encode


async def fitting(storage: Storage, found: Claimed, most: int | None, beside: AllSettled | None = None) -> Claimed:
    """The first of the claimed jobs that fit into an answer of `most` bytes (None: all), together with `beside`.

    One that alone is too large fails. Raises StorageError.
    """
    settled = 0 if beside is None else len(beside.settled)
    if most is None or sum(map(_longest, found.records)) + SHORT * settled < most:  # nearly always: nothing is encoded
        return found
    room = most - FRAME - (0 if beside is None else len(_encode(beside)))
    alone, left = most - FRAME, room
    fit: list[Record] = []
    outcomes: list[Outcome] = []
    turns, is_full = TimeSlices(), False
    for row in found.records:
        await turns.step()
        if is_full:
            outcomes.append(judge.handed_back(row))
            continue
        size = len(_encode(row)) + 1
        if size > alone:
            outcomes.append(_failed(row, size, most))
        elif size > left:
            is_full = True
            outcomes.append(judge.handed_back(row))
        else:
            fit.append(row)
            left -= size
    if not outcomes:
        return found
    await storage.settle(outcomes)
    return replace(found, records=tuple(fit), next_in=0.0)


def _longest(row: Record) -> int:
    """No fewer bytes than the row has as JSON, without making it: a character takes six at most."""
    job, pairs = row.job, (*row.memo, *row.job.headers)
    texts = (job.payload, job.retry, row.result, row.value, row.error, row.note)
    names = len(job.after) + len(row.after) + len(job.limits) + len(job.labels)
    return 6 * (
        SHORT + sum(len(text) for text in texts if text) + sum(len(a) + len(b) + 8 for a, b in pairs) + 600 * names
    )


def _failed(row: Record, size: int, most: int) -> Outcome:
    words = f"the row of this job has {size:,} bytes as JSON, and the worker that claimed it takes an answer of at most"
    error = f"{words} {most:,}: raise ?max_answer= of its storage's URL, or pass a reference instead of the data"
    return failure(row, error) if row.ran else judge.ended(row, LARGE, error)
