"""Sends signals and messages to the mailboxes of jobs, and reads them.

One call of the storage stores a message, so a sender that dies leaves a message or none. However many messages were
sent before, a send makes the same number of calls: two reads find the first free row.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, ForeignRow, IdTaken, MailboxFull, Signalled, StorageError
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.policy.rounds import EMPTY, mailboxes_of, round_of
from treadle.storage import patiently
from treadle.storage.contract import Storage
from treadle.workflow.signals import (
    SEEN_AT_ONCE,
    SignalRow,
    check_place,
    check_signal,
    header_of,
    is_message,
    mailbox_row,
    signal_id,
)

ANSWER: Final = "treadle:answer:"  # prefix of the ids of rows that take an answer, or remember a key
STRIDE: Final = 32  # turns between the rows that the first read looks at; the second reads those between two of them


_read_payload = msgspec.json.Decoder(tuple[str, Raw]).decode
_read_value = msgspec.json.Decoder(tuple[str, str]).decode
_SEPARATOR: Final = "\0"  # no id, name or key of a message contains it


class AnswerRow(Struct, frozen=True):
    """The payload of a row that takes the answer to a message, or remembers the key of one."""

    job: str
    signal: str
    nonce: str


_read_answer = msgspec.json.Decoder(AnswerRow).decode


def check_answer(stored: Record, job: str, queue: str, name: str) -> Record:
    """The row that takes the answer to a message of this name to this job, or remembers its key. Raises ForeignRow if
    another caller stored it."""
    check_place(stored, queue, None, None)
    try:
        answer = _read_answer(stored.job.payload)
    except UNREADABLE:
        answer = None
    if answer is None or (answer.job, answer.signal) != (job, name):
        raise ForeignRow(stored.job.id, stored.job.queue, queue)
    return stored


class Message(Struct, frozen=True):
    """A value on its way to a mailbox.

    nonce      tells it from every other message
    tag        names the row that takes its answer or remembers its key; "": there is none
    asks       the sender waits for an answer
    remembered seconds for which that row is kept: of an answer at most, of a key at least
    is_signal  the mailbox takes no second one before the job has received it
    """

    name: str
    text: str
    nonce: str
    tag: str = ""
    asks: bool = False
    remembered: float = defaults.ONCE
    is_signal: bool = False

    def row(self, job: NewJob, turn: int) -> NewJob:
        """The row that holds it. Its value is durable once the row is stored; the row ends by itself if its sender
        dies."""
        header = SignalRow(job.id, self.name, True, self.tag if self.asks else "")
        row = mailbox_row(header, turn, job, defaults.SIGNAL_GIVEN, f'["{self.nonce}",{self.text}]')
        return replace(row, nonce=self.nonce)

    def answer_row(self, job: NewJob) -> tuple[NewJob, ...]:
        """The row for its answer or its key, if it needs one. No second message of that key can store it."""
        if not self.tag:
            return ()
        payload = msgspec.json.encode(AnswerRow(job.id, self.name, self.nonce)).decode()
        return (
            NewJob(
                id=ANSWER + self.tag,
                payload=payload,
                queue=job.queue,
                deadline=self.remembered,
                keep=self.remembered if self.asks else 0.0,
                keep_failed=0.0,
                nonce=self.nonce,
            ),
        )


def new_message(
    job: str, name: str, text: str, key: str | None, *, asks: bool = False, wait: float = 0.0, is_signal: bool = False
) -> Message:
    """A message with a new nonce. `wait`: seconds that its sender waits for the answer."""
    nonce = os.urandom(8).hex()
    if key is None:
        return Message(name, text, nonce, os.urandom(20).hex() if asks else "", asks, wait, is_signal)
    tag = hashlib.sha256(_SEPARATOR.join((job, name, key)).encode()).hexdigest()[:40]
    return Message(name, text, nonce, tag, asks, max(wait, defaults.ONCE))


def text_of(stored: Record) -> str:
    """The encoded value of a message; the stored text if that cannot be read, for example without its key."""
    header = header_of(stored.job)
    if header is None or not header.given:
        return stored.result or "null"
    try:
        return bytes(_read_payload(stored.job.payload)[1]).decode()
    except UNREADABLE:
        return stored.job.payload


def asked_in(stored: Record) -> str:
    """The tag of the row that takes the answer to this message; "": its sender waits for none."""
    header = header_of(stored.job)
    if header is not None and header.given:
        return header.ask
    try:
        return "" if stored.value is None else _read_value(stored.value)[1]
    except UNREADABLE:  # an operator or another program has settled the row
        return ""


async def send(storage: Storage, job: Record, message: Message, reach: tuple[str, ...] = ()) -> bool:
    """Put the message in its mailbox. Returns whether this call did; False: one with its key was sent before.

    reach  the queues that the caller has access to; (): every queue
    Raises MailboxFull; Signalled for a signal that was given before, and ForeignRow if another caller has stored a row
    of the mailbox.
    """
    mailbox = mailboxes_of(job.checkpoints).get(message.name, EMPTY)
    if message.is_signal and mailbox.signalled == round_of(job.checkpoints).number:
        raise Signalled(job.id, message.name)
    further = tuple(replace(row, reach=reach) for row in message.answer_row(job.job))
    while True:
        turn, waiting = await _free(storage, job, message, mailbox.turn)
        if waiting is not None:
            done = await _settle(storage, waiting, job, message, further, reach)
        else:
            new = replace(message.row(job.job, turn), reach=reach)
            done = await _store(storage, job, message, new, further)
        if done is not None:
            return done


async def _was_sent(storage: Storage, job: Record, message: Message) -> bool:
    """Whether a message with the key of this one was sent before. Raises ForeignRow."""
    [stored] = await storage.get([ANSWER + message.tag])
    return stored is not None and bool(check_answer(stored, job.job.id, job.job.queue, message.name))


async def _store(
    storage: Storage, job: Record, message: Message, new: NewJob, further: tuple[NewJob, ...]
) -> bool | None:
    """Store a message in its own row. None: that turn was taken meanwhile."""
    try:
        rows = await patiently(partial(storage.enqueue, [*further, new]))
    except IdTaken as error:
        if error.id == new.id:
            return None
        if further and error.id == further[0].id and await _was_sent(storage, job, message):
            return False
        raise
    if rows[-1].job.nonce != new.nonce:
        return None
    await finish(storage, new.id, new.reach)
    return True


async def finish(storage: Storage, id: str, reach: tuple[str, ...] = ()) -> None:
    """End the row of a message that was just stored, which wakes a job that has begun to wait for it. If that fails,
    the row ends by itself."""
    with suppress(StorageError):
        await storage.settle([Outcome(id=id, version=0, state=State.SUCCEEDED, reach=reach)])


async def _settle(
    storage: Storage,
    waiting: Record,
    job: Record,
    message: Message,
    further: tuple[NewJob, ...],
    reach: tuple[str, ...],
) -> bool | None:
    """Settle the row that the job waits for. None: another call did."""
    ask = message.tag if message.asks else ""
    out = Outcome(
        id=waiting.id,
        version=waiting.version,
        state=State.SUCCEEDED,
        result=message.text,
        value=msgspec.json.encode((message.nonce, ask)).decode(),  # so that only one sender's outcome is "applied"
        followups=further,
        reach=reach,
    )
    [answer] = await storage.settle([out])
    if answer.status == "applied":
        return True
    if answer.status == "refused" and not answer.again:
        if further and await _was_sent(storage, job, message):
            return False
        raise StorageError(f"the storage refused the message {message.name!r}: {answer.reason}")
    return None


async def _free(storage: Storage, job: Record, message: Message, used: int) -> tuple[int, Record | None]:
    """The first free turn behind those that the job has used, and its row if the job waits there."""
    first, last = used + 1, used + defaults.MAX_MESSAGES
    near = min(first + SEEN_AT_ONCE, last)
    turns: Sequence[int] = [*range(first, near), *range(near, last, STRIDE), last]
    while True:
        before = turns[0] - 1
        rows = await storage.get([signal_id(job.id, message.name, turn) for turn in turns])
        for turn, stored in zip(turns, rows, strict=True):
            if stored is None or _is_open(check_signal(stored, job)):
                if turn == before + 1:
                    return turn, stored
                break
            if message.is_signal and is_message(stored):
                raise Signalled(job.id, message.name)
            before = turn
        if before == last:
            raise MailboxFull(job.id, message.name, defaults.MAX_MESSAGES)
        turns = range(before + 1, min(before + STRIDE, last) + 1)


def _is_open(stored: Record) -> bool:
    """Whether the job waits for this row, and it has no value yet."""
    return not stored.state.final and not is_message(stored)
