"""The facts that a durable job keeps over its restarts: their number, its present arguments, and how far it has read
its mailboxes. Pure.

Each is a checkpoint. Only the arguments are encrypted: a sender of signals and messages reads the others.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadStep
from treadle.core.model import ARGUMENTS_NOW, MAILBOX, ROUND, Outcome, Pairs, Record, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.core.ranges import Natural
from treadle.policy import guilt


class Round(Struct, frozen=True, omit_defaults=True):
    """The content of the checkpoint `ROUND`.

    number  how often the job was restarted
    """

    number: Natural = 0


class Mailbox(Struct, frozen=True, omit_defaults=True):
    """The content of a checkpoint `MAILBOX`.

    turn       the last row of the mailbox that the job has received, or no longer waits for
    signalled  the round in which `wait_for` received the signal of that name: it takes one in each round
    back       earlier rows that the job receives again, before later ones
    """

    turn: Natural = 0
    signalled: Natural | None = None
    back: tuple[Natural, ...] = ()


FIRST, EMPTY = Round(), Mailbox()
_read = msgspec.json.Decoder(Round).decode
_read_mailbox = msgspec.json.Decoder(Mailbox).decode


def round_of(checkpoints: Pairs) -> Round:
    """The present round; `FIRST` if the job was not restarted. Raises BadStep if it cannot be read."""
    text = own_checkpoints(checkpoints).get(ROUND)
    try:
        return FIRST if text is None else _read(text)
    except UNREADABLE as error:
        raise BadStep("restart", f"the checkpoint of the last restart cannot be read: {error}") from None


def round_note(then: Round) -> tuple[str, str]:
    """The checkpoint that begins this round."""
    return ROUND, msgspec.json.encode(then).decode()


def mailboxes_of(checkpoints: Pairs) -> dict[str, Mailbox]:
    """The mailboxes of a job, by name. Raises BadStep if one of them cannot be read."""
    mailboxes = {}
    for key, text in checkpoints:
        if key.startswith(MAILBOX):
            name = key[len(MAILBOX) :]
            try:
                mailboxes[name] = _read_mailbox(text)
            except UNREADABLE as error:
                raise BadStep(name, f"the checkpoint of this mailbox cannot be read: {error}") from None
    return mailboxes


def mailbox_note(name: str, mailbox: Mailbox) -> tuple[str, str]:
    """The checkpoint of a mailbox."""
    return MAILBOX + name, msgspec.json.encode(mailbox).decode()


def present(record: Record) -> Record:
    """The record with the arguments of its present round."""
    text = own_checkpoints(record.checkpoints).get(ARGUMENTS_NOW)
    return record if text is None else replace(record, job=replace(record.job, payload=text))


def restarted(record: Record, then: Round, payload: str) -> Outcome:
    """Run again in a new round, without a counted attempt and without the steps of this one. It keeps its position, as
    the function would have kept its slot."""
    pairs = round_note(then), (ARGUMENTS_NOW, payload)
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        result=record.result,
        checkpoints=(*pairs, *guilt.cleared_note(record)),
    )
