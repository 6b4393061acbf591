"""Bounds the size of the response to a claim: a worker that cannot read the response cannot run the leased jobs.

Jobs that do not fit return to their queue position at once, without a counted attempt, for a later claim.
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
from treadle.workflow import failure

FRAME: Final = 1_024  # bytes of a response apart from its rows and outcomes
SHORT: Final = 8_192  # characters of all other fields: names, keys, numbers
LARGE: Final = "too large for its worker"

_encode = msgspec.json.Encoder().encode


async def fitting(storage: Storage, claimed: Claimed, most: int | None, beside: AllSettled | None = None) -> Claimed:
    """The first claimed jobs that fit into a response of `most` bytes (None: all) next to `beside`, the
    rest of the response.

    A job that is too large on its own fails. Raises StorageError.
    """
    settled = 0 if beside is None else len(beside.settled)
    if most is None or sum(map(_longest, claimed.records)) + SHORT * settled < most:  # the usual case, without encoding
        return claimed
    room = most - FRAME - (0 if beside is None else len(_encode(beside)))
    alone, room_left = most - FRAME, room
    fit: list[Record] = []
    outcomes: list[Outcome] = []
    turns, is_full = TimeSlices(), False
    for row in claimed.records:
        await turns.step()
        if is_full:
            outcomes.append(judge.released(row))
            continue
        size = len(_encode(row)) + 1
        if size > alone:
            outcomes.append(_failed(row, size, most))
        elif size > room_left:
            is_full = True
            outcomes.append(judge.released(row))
        else:
            fit.append(row)
            room_left -= size
    if not outcomes:
        return claimed
    await storage.settle(outcomes)
    return replace(claimed, records=tuple(fit), next_in=0.0)


def _longest(row: Record) -> int:
    """An upper bound for the bytes of a row as JSON: a character takes at most six."""
    job, pairs = row.job, (*row.checkpoints, *row.job.headers)
    texts = (job.payload, job.retry, row.result, row.value, row.error, row.note)
    names = len(job.after) + len(row.after) + len(job.limits) + len(job.labels)
    return 6 * (
        SHORT + sum(len(text) for text in texts if text) + sum(len(a) + len(b) + 8 for a, b in pairs) + 600 * names
    )


def _failed(row: Record, size: int, most: int) -> Outcome:
    problem = (
        f"the row of this job has {size:,} bytes as JSON, and the worker that claimed it accepts responses of at most"
    )
    error = f"{problem} {most:,}: raise ?max_answer= in its storage URL, or pass a reference instead of the data"
    return failure(row, error) if row.function_done else judge.ended(row, LARGE, error)
