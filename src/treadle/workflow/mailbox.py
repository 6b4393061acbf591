"""Sends signals and messages to the mailboxes of jobs, and reads them.

One call of the storage stores messages that are sent together, so a sender that dies leaves all of them or none.
However many messages were sent before, a send makes the same number of calls: two reads find the first free row.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, NamedTuple

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
MOST_SIZE: Final = 1_048_576  # characters of the values that one call stores, unless a single one is longer
PAUSES: Final = (2, 4, 8, 16, 8, 4, 2, 1)  # the longest pause after each try, in lengths of that try

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


class Seen(NamedTuple):
    """The next rows of a mailbox, as they were read together with its job. `used`: every row before `first` is used."""

    first: int
    rows: Sequence[Record | None]
    used: bool


class Sending:
    """Messages on their way to one mailbox. They are stored in one call, in rows behind each other; if another process
    has taken the first of these, from there on.

    results  the endings of those that are over, by their nonces: whether this call has put the message in the mailbox
             (False: one with its key was sent before), or its error: MailboxFull; Signalled for a signal that was given
             before, and ForeignRow if another caller has stored a row of the mailbox
    used     the last row of the mailbox that is known to be used
    """

    def __init__(
        self,
        storage: Storage,
        job: Record,
        messages: Sequence[Message],
        reach: tuple[str, ...] = (),
        seen: Seen | None = None,
    ) -> None:
        """`reach`: the queues that the caller has access to; (): every queue."""
        self._storage, self._job, self._reach, self._name = storage, job, reach, messages[0].name
        self._mailbox = mailboxes_of(job.checkpoints).get(self._name, EMPTY)
        self._open, self.results = list(messages), dict[str, bool | Exception]()
        self._seen, self.used = seen, self._mailbox.turn
        # A job that waits may wait for a row that an operator has deleted.
        if seen is not None and seen.used and job.state is not State.WAITING:
            self.used = max(self.used, seen.first - 1)

    async def run(self) -> None:
        """Send them. After an error no message is sent again: it may be stored."""
        last = self._mailbox.turn + defaults.MAX_MESSAGES
        loop = asyncio.get_running_loop()
        try:
            self._refuse_signal(self._mailbox.signalled == round_of(self._job.checkpoints).number)
            for tries in count():
                begun, open = loop.time(), len(self._open)
                turn, waiting = await self._free(self.used + 1, last)
                self.used = turn - 1
                if waiting is not None:
                    await self._settle(waiting)
                else:
                    await self._store(turn, self._group(last - turn + 1))
                if not self._open:
                    return
                if len(self._open) == open:
                    await asyncio.sleep(self._pause(tries) * (loop.time() - begun))
        except Exception as error:
            for message in self._open:
                self.results[message.nonce] = copy.copy(error)

    def _end(self, messages: Sequence[Message], result: bool | Exception) -> None:
        self.results.update((message.nonce, result) for message in messages)
        self._open = [message for message in self._open if message.nonce not in self.results]

    def _pause(self, tries: int) -> float:
        """Another process was faster: the pause until the next try, in lengths of this one. It is random, as all losers
        try again, and a sender that has lost often tries more often than others."""
        digits = int(self._open[0].nonce, 16) >> (tries % 14 * 4)
        return digits % 256 / 256 * PAUSES[min(tries, len(PAUSES) - 1)]

    def _refuse_signal(self, is_given: bool) -> None:
        if is_given and self._open[0].is_signal:
            raise Signalled(self._job.id, self._name)

    def _further(self, message: Message) -> tuple[NewJob, ...]:
        return tuple(replace(row, reach=self._reach) for row in message.answer_row(self._job.job))

    async def _end_known(self) -> None:
        """End the messages with whose keys one was sent before; with an error if the row is another caller's."""
        keyed = [message for message in self._open if message.tag]
        rows = await self._storage.get([ANSWER + message.tag for message in keyed])
        for message, stored in zip(keyed, rows, strict=True):
            if stored is not None:
                try:
                    check_answer(stored, self._job.id, self._job.job.queue, self._name)
                    self._end([message], False)
                except ForeignRow as error:
                    self._end([message], error)

    def _group(self, most: int) -> list[Message]:
        """The next messages that one call stores: of those with the same key, the first."""
        group, size = dict[str, Message](), 0
        for message in self._open[:most]:
            size += len(message.text)
            if group and size > MOST_SIZE:
                break
            group.setdefault(message.tag or message.nonce, message)
        return list(group.values())

    async def _store(self, turn: int, messages: Sequence[Message]) -> None:
        """Store messages in rows of their own, from this turn on: all, or none if one of the rows is taken."""
        job = self._job.job
        new = [replace(message.row(job, place), reach=self._reach) for place, message in enumerate(messages, turn)]
        further = [row for message in messages for row in self._further(message)]
        try:
            await patiently(partial(self._storage.enqueue, [*further, *new]))
        except IdTaken as error:
            open = len(self._open)
            if any(error.id == row.id for row in further):
                await self._end_known()
            if len(self._open) < open or any(error.id == row.id for row in new):
                return
            raise
        self._end(messages, True)
        self.used += len(new)
        await finish(self._storage, [row.id for row in new], self._reach)

    async def _settle(self, waiting: Record) -> None:
        """Settle the row that the job waits for with the first message, unless another call does."""
        message = self._open[0]
        out = Outcome(
            id=waiting.id,
            version=waiting.version,
            state=State.SUCCEEDED,
            result=message.text,
            # The nonce is there so that only one sender's outcome is "applied".
            value=msgspec.json.encode((message.nonce, message.tag if message.asks else "")).decode(),
            followups=self._further(message),
            reach=self._reach,
        )
        [answer] = await self._storage.settle([out])
        if answer.status == "applied":
            self._end([message], True)
            self.used += 1
            return
        is_refused = answer.status == "refused" and not answer.again
        if is_refused and message.tag:
            await self._end_known()
        if is_refused and message in self._open:
            error = f"the storage refused the message {self._name!r}: {answer.reason}"
            self._end([message], StorageError(error))

    async def _free(self, first: int, last: int) -> tuple[int, Record | None]:
        """The first free turn of these, and its row if the job waits there."""
        near, rows = min(first + SEEN_AT_ONCE, last), self._seen_from(first, last)
        turns: Sequence[int] = [*range(first, near), *range(near, last, STRIDE), last]
        was_seen = bool(rows)
        while True:
            before = turns[0] - 1
            rows = rows or await self._storage.get([signal_id(self._job.id, self._name, turn) for turn in turns])
            for turn, stored in zip(turns, rows, strict=False):
                if stored is None or _is_open(check_signal(stored, self._job)):
                    if turn == before + 1:
                        return turn, stored
                    break
                self._refuse_signal(is_message(stored))
                before = turn
            if before >= last:
                raise MailboxFull(self._job.id, self._name, defaults.MAX_MESSAGES)
            if was_seen:
                first, was_seen = before + 1, False
                near = min(first + SEEN_AT_ONCE, last)
                turns, rows = [*range(first, near), *range(near, last, STRIDE), last], ()
                continue
            turns, rows = range(before + 1, min(before + STRIDE, last) + 1), ()

    def _seen_from(self, first: int, last: int) -> Sequence[Record | None]:
        """The rows of the turns from `first` on that were read before this call, at most once; (): they are to be
        read."""
        seen, self._seen = self._seen, None
        start = -1 if seen is None else first - seen.first
        return seen.rows[start : start + min(SEEN_AT_ONCE, last + 1 - first)] if seen is not None and start >= 0 else ()


async def finish(storage: Storage, ids: Sequence[str], reach: tuple[str, ...] = ()) -> None:
    """End the rows of messages that were just stored, which wakes a job that has begun to wait for one. If that fails,
    the rows end by themselves."""
    with suppress(StorageError):
        await storage.settle([Outcome(id=id, version=0, state=State.SUCCEEDED, reach=reach) for id in ids])


def _is_open(stored: Record) -> bool:
    """Whether the job waits for this row, and it has no value yet."""
    return not stored.state.final and not is_message(stored)
