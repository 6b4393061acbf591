"""The restarts of a durable job: how often its function began anew, and with which arguments. Pure.

A checkpoint has them. The `NewJob` keeps the first arguments, with which an enqueue of the same id is compared.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadStep
from treadle.core.model import ROUND, Outcome, Pairs, Record, State
from treadle.core.ranges import Natural
from treadle.policy import guilt


class Round(Struct, frozen=True, omit_defaults=True):
    """The content of the checkpoint.

    number   how often the job was restarted
    payload  the arguments of this round
    turns    signals by name -> the last of their rows that an earlier round has used
    """

    number: Natural = 0
    payload: str = ""
    turns: dict[str, int] = {}


FIRST = Round()
_read = msgspec.json.Decoder(Round).decode


def round_of(checkpoints: Pairs) -> Round:
    """The present round; `FIRST` if the job was not restarted. Raises BadStep if it cannot be read."""
    for name, text in checkpoints:
        if name == ROUND:
            try:
                return _read(text)
            except UNREADABLE as error:
                raise BadStep("restart", f"what the last restart stored cannot be read: {error}") from None
    return FIRST


def present(record: Record) -> Record:
    """The record with the arguments of its present round."""
    now = round_of(record.checkpoints)
    return replace(record, job=replace(record.job, payload=now.payload)) if now.number else record


def restarted(record: Record, then: Round) -> Outcome:
    """Run again in a new round, without a counted attempt and without the steps of this one."""
    pair = ROUND, msgspec.json.encode(then).decode()
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        delay=0.001,  # with 0 the job would be claimed again ahead of all others
        result=record.result,
        checkpoints=(pair, *guilt.cleared_note(record)),
    )
