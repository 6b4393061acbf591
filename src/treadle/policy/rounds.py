"""The restarts of a durable job: how often its function began anew, and with which arguments. Pure.

Two checkpoints have them. The one with the number is never encrypted: a sender of a signal reads it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadStep
from treadle.core.model import ARGUMENTS_NOW, ROUND, Outcome, Pairs, Record, State
from treadle.core.ranges import Natural
from treadle.policy import guilt


class Round(Struct, frozen=True, omit_defaults=True):
    """The content of the checkpoint `ROUND`.

    number  how often the job was restarted
    turns   signals by name -> the last of their rows that an earlier round has used
    """

    number: Natural = 0
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
                raise BadStep("restart", f"the checkpoint of the last restart cannot be read: {error}") from None
    return FIRST


def present(record: Record) -> Record:
    """The record with the arguments of its present round."""
    for name, text in record.checkpoints:
        if name == ARGUMENTS_NOW:
            return replace(record, job=replace(record.job, payload=text))
    return record


def restarted(record: Record, then: Round, payload: str) -> Outcome:
    """Run again in a new round, without a counted attempt and without the steps of this one. It keeps its position, as
    the function would have kept its slot."""
    pairs = (ROUND, msgspec.json.encode(then).decode()), (ARGUMENTS_NOW, payload)
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        result=record.result,
        checkpoints=(*pairs, *guilt.cleared_note(record)),
    )
