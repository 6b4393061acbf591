"""Receives messages and signals in a run, answers them, and publishes values.

A message is received once: its value is an entry of the history, stored before the function gets it. Only then is its
row released, so that a job which lives for months does not keep the rows of its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, BadStep, StepMismatch, TooLarge
from treadle.core.model import ASKED, ERROR, PUBLISHED, STREAM, Outcome, Record, State
from treadle.durable.backend import EARLY
from treadle.durable.checkpoints import MARK, WAIT, Checkpoint, StepRequest, valued
from treadle.durable.failures import MESSAGE, Failure
from treadle.durable.pending import Pending
from treadle.durable.run_mailboxes import RELEASED
from treadle.durable.step_codec import signature_of_kind
from treadle.durable.step_taker import StepTaker
from treadle.durable.streams import RunStreams
from treadle.policy.retry import seconds
from treadle.policy.rounds import mailbox_note
from treadle.serialization.call_codec import Unstorable, decode_any, encode_any
from treadle.workflow.mailbox import ANSWER, asked_in, text_of
from treadle.workflow.signals import SEEN_AT_ONCE, check_signal, is_message, signal_id, signal_row, usable

T_co = TypeVar("T_co", covariant=True)

PAUSES: Final = (0.0, 0.01, 0.1)  # s between two looks at rows that could not be released


class MailboxWait:
    """The wait for the next message of a mailbox. Its entry has the value, or says that it timed out; before, it has
    the end of the timeout.

    The row that the wait and a sender share stays open if the wait times out or is dropped: a later wait for the same
    name uses it.
    """

    METHOD, kind = "receive", WAIT

    def __init__(
        self,
        run: StepTaker,
        request: StepRequest,
        name: str,
        timeout: float | timedelta | None,
        kind: Any,
        ask: type[AnyAsk[Any]] | None = None,
    ) -> None:
        """`ask`: the class of its value, for a message that is answered."""
        self._run, self.request, self._name, self._kind, self._ask = run, request, name, kind, ask
        self._timeout = None if timeout is None else seconds(timeout, "timeout")
        self._before: int | None = None  # the last row that the job had received before this wait received one
        run.mailboxes.expected.add(name)

    async def look(self) -> Pending | None:
        """See `Wait`."""
        run, request, row = self._run, self.request, self._run.run.record
        entry = run.checkpoints.entries.get(request.key)
        if entry is not None and _is_over(entry):
            self._may_be_cut_off(entry)
            return None
        run.refuse_message()
        now = run.moment()
        ends, remaining = None, self._timeout
        if remaining is not None:
            ends = run.latest_moment() + remaining
        if entry is not None and isinstance(entry.until, float):
            ends, remaining = entry.until, entry.until - now
        turn, stored = await self._row()
        if stored is not None and is_message(stored):
            self._take(turn, stored)
            return None
        if remaining is not None and remaining <= EARLY:
            run.checkpoints.keep(request, Checkpoint(request.after, gave_up=True, life=run.checkpoints.round))
            return None
        if ends is not None and (entry is None or entry.until is UNSET):
            run.checkpoints.keep(request, Checkpoint(request.after, until=ends, life=run.checkpoints.round))
        if stored is not None:
            return Pending((stored.id,), until=ends)
        to_deadline = defaults.SIGNAL_ROW if row.deadline_at is None else max(EARLY, row.deadline_at - now)
        # The row of an ended job ends at its deadline: while it is open, the workflow cannot be pruned.
        new = signal_row(row, self._name, turn, min(to_deadline, defaults.SIGNAL_ROW))
        return Pending((new.id,), (new,), ends)

    def _take(self, turn: int, stored: Record) -> None:
        """Keep the entry of a message, and how far the mailbox is read."""
        checkpoints, mailboxes = self._run.checkpoints, self._run.mailboxes
        entry = valued(self.request, text_of(stored), False, turn=turn)
        tag = asked_in(stored)
        checkpoints.keep(self.request, replace(entry, ask=tag) if tag else entry)
        self._before = mailboxes.now(self._name).turn
        checkpoints.note(mailbox_note(self._name, mailboxes.take(self._name, turn, self._signalled())))
        self._may_be_cut_off(entry)

    def _may_be_cut_off(self, entry: Checkpoint) -> None:
        """If it is decided that the function was cut off before it got the value, the job receives it again."""
        if isinstance(entry.turn, int):
            self._run.mailboxes.in_flight.add((self._name, entry.turn))
            self._run.checkpoints.if_cut_off[self.request.key] = partial(self._give_back, entry.turn)

    def _give_back(self, turn: int) -> None:
        run, name = self._run, self._name
        run.mailboxes.in_flight.discard((name, turn))
        run.checkpoints.note(mailbox_note(name, run.mailboxes.give_back(name, turn)))

    def _signalled(self) -> int | None:
        """The round, if the mailbox takes one signal in it."""
        return None

    async def _row(self) -> tuple[int, Record | None]:
        """The row that this wait and a sender share. A wait uses the next row when a row has expired."""
        job, mailboxes, name, least = self._run.run.record, self._run.mailboxes, self._name, 0
        while True:
            mailbox = mailboxes.now(name)
            if not mailbox.back and (ahead := mailboxes.ahead(name, mailbox.turn)) is not None:
                return ahead
            first = max(least, mailbox.turn + 1)
            turns = [*mailbox.back, *range(first, first + SEEN_AT_ONCE)]
            rows = await self._run.backend.get([signal_id(job.id, name, turn) for turn in turns])
            if mailboxes.now(name) != mailbox:
                continue  # another branch has received a message since
            for index, (turn, stored) in enumerate(zip(turns, rows, strict=True)):
                is_back = turn < first
                if stored is None:
                    if not is_back:
                        return turn, None
                elif usable(check_signal(stored, job)) and (is_message(stored) or not is_back):
                    if not is_back:
                        mailboxes.read_ahead(name, turns[index + 1 :], rows[index + 1 :])
                    return turn, stored
            least = first + SEEN_AT_ONCE

    def value(self) -> Any:
        """See `Wait`."""
        run, request = self._run, self.request
        entry = run.checkpoints.entries[request.key]
        if entry.gave_up:
            job = run.run.record.job
            within = "in time" if self._timeout is None else f"within {self._timeout:g} s"
            if entry.life is not UNSET:
                run.checkpoints.timed_out(request)
            raise run.timed_out(request, f"{job.task} {job.id} did not receive {self._missing(job.id, within)}")
        if entry.result is None:
            raise StepMismatch(run.run.record.job.id, request.key, request.after, "another step of that name")
        self._arrived(entry)
        value = decoded_as(entry.result, self._kind, self.METHOD)
        if self._ask is None:
            return value
        return self._ask(run, self.request.key, value, entry.ask if isinstance(entry.ask, str) else "")

    def _arrived(self, entry: Checkpoint) -> None:
        """The function gets the value."""
        mailboxes = self._run.mailboxes
        mailboxes.expected.discard(self._name)
        self._run.checkpoints.if_cut_off.pop(self.request.key, None)
        if isinstance(entry.turn, int):
            mailboxes.in_flight.discard((self._name, entry.turn))
            mailboxes.take(self._name, entry.turn)

    def _missing(self, job: str, within: str) -> str:
        sends = command("jobs", "send", job, self._name)
        return f"a message in {self._name!r} {within}; {sends} sends one to a later wait"

    async def conclude(self) -> None:
        """Let the storage prune the rows of a group that the job has received. The first row after it releases it: the
        wait for this one may still be cut off."""
        run, name, turn = self._run, self._name, self._run.checkpoints.entries[self.request.key].turn
        if not isinstance(turn, int):
            return
        last = (turn - 1) // RELEASED * RELEASED
        if not last or (turn - 1 if self._before is None else self._before) > last:
            return
        await self._release(run.mailboxes.released(name, last - RELEASED + 1))

    async def _release(self, turns: Sequence[int]) -> None:
        """Release these rows. Their sender may end one in this moment, or another transaction lock it: look again."""
        backend, ids = self._run.backend, [signal_id(self._run.run.record.job.id, self._name, turn) for turn in turns]
        for pause in PAUSES:
            rows = [row for row in await backend.get(ids) if row is not None]
            states = [(row, row.state if row.state.final else State.SUCCEEDED) for row in rows]
            outcomes = [Outcome(id=row.id, version=row.version, state=state, keep=0.0) for row, state in states]
            answers = await backend.settle(outcomes) if outcomes else ()
            pairs = zip(rows, answers, strict=True)
            ids = [row.id for row, answer in pairs if answer.status != "applied" or not row.state.final]
            if not ids:
                return
            await asyncio.sleep(pause)

    def lose(self) -> None:
        """No job works for it."""

    async def drop(self) -> None:
        """The row stays, for a later wait."""


class SignalWait(MailboxWait):
    """The wait for a signal, which comes once in a round."""

    METHOD = "wait_for"

    async def look(self) -> Pending | None:
        """See `Wait`."""
        entry = self._run.checkpoints.entries.get(self.request.key)
        if (entry is None or not _is_over(entry)) and self._name in self._run.mailboxes.received:
            text = f"this run has already received the signal; wait for another name, such as '{self._name}:2'"
            raise BadStep(self._name, text)
        return await super().look()

    def _signalled(self) -> int | None:
        return self._run.round.number

    def _arrived(self, entry: Checkpoint) -> None:
        super()._arrived(entry)
        self._run.mailboxes.received.add(self._name)

    def _missing(self, job: str, within: str) -> str:
        sends = command("jobs", "signal", job, self._name)
        return f"the signal {self._name!r} {within}; {sends} sends it to a later wait"


def _is_over(entry: Checkpoint) -> bool:
    """Whether the wait has its value, or has timed out."""
    return entry.gave_up or entry.has_value


async def end_signals(run: StepTaker) -> None:
    """The job ends: end the rows of mailboxes that its function no longer waits for. While such a row is open, the
    workflow cannot be pruned."""
    job = run.run.record.job.id
    rows = await run.backend.get(
        [signal_id(job, name, run.mailboxes.now(name).turn + 1) for name in run.mailboxes.expected]
    )
    error = f"job {job} has ended"
    ended = [
        Outcome(id=row.id, version=row.version, state=State.CANCELLED, reason=ASKED, error=error)
        for row in rows
        if row is not None and row.job.parent == job and not row.state.final
    ]
    if ended:
        await run.backend.settle(ended)


# --- answers


class AnyAsk(Generic[T_co]):
    """A message that takes one answer."""

    def __init__(self, run: StepTaker, received: str, value: T_co, tag: str) -> None:
        """`received`: the key of the wait that received the message. The key of the answer has the same number."""
        self._run, self._key, self._tag, self._is_answered = run, f"answer:{received.partition(':')[2]}", tag, False
        self.value = value

    def _placed(self, value: object, why: str | None) -> tuple[StepRequest, Checkpoint]:
        """The place of the answer in the history, and its entry; with `why` it is a refusal."""
        run, name = self._run, self._key.partition("#")[0]
        if self._is_answered:
            raise BadStep(name, "this message has its answer; each takes one")
        request = run.asked(name, key=self._key)
        if why is None:
            text = _storable(f"the answer to {name.partition(':')[2]!r}", value, run.backend.sizes.step)
            entry = valued(request, text, False)
        else:
            entry = request.entry_of(failure=Failure("AskRefused", message=why[:MESSAGE]))
        self._is_answered = True
        return request, entry

    async def _send(self, request: StepRequest, entry: Checkpoint) -> None:
        """Store the answer, and then send it. The next run sends it again if this one dies in between."""
        run = self._run
        try:
            if request.entry is None:
                run.checkpoints.keep(request, entry)
                await run.backend.save(run.run)
            elif run.checkpoints.following(request.key) is not None:
                return
            else:
                entry = request.entry
            out = Outcome(id=ANSWER + self._tag, version=0, state=State.SUCCEEDED, result=entry.result)
            if isinstance(entry.failure, Failure):
                out = replace(out, state=State.FAILED, reason=ERROR, error=entry.failure.text)
            if self._tag:
                await run.backend.settle([out])
        finally:
            run.checkpoints.end(request)


class Ask(AnyAsk[T_co]):
    """A message whose sender may wait for an answer: `current().receive_ask(name)` returns it.

    A message of `app.jobs.send` takes an answer, too, which no program reads. An answer that comes after the sender has
    given up is dropped.
    """

    def answer(self, value: object = None) -> Coroutine[Any, Any, None]:
        """Send this value to the sender. It is stored first, so it is the same whatever dies. Raises BadStep for a
        second answer, BadOption and TooLarge."""
        return self._awaited(value, None)

    def refuse(self, why: str) -> Coroutine[Any, Any, None]:
        """Make `ask` of the sender raise AskRefused with this text. Raises BadStep for a second answer."""
        return self._awaited(None, why)

    def _awaited(self, value: object, why: str | None) -> Coroutine[Any, Any, None]:
        request, entry = self._placed(value, why)

        async def work() -> None:
            await self._run.reached(request, MARK)
            await self._send(request, entry)

        return self._run.awaited(request.key, work)


class SynchronousAsk(AnyAsk[T_co]):
    """`Ask` for functions in threads: its methods return when the answer is sent."""

    def answer(self, value: object = None) -> None:
        """As `Ask.answer`."""
        self._answer(value, None)

    def refuse(self, why: str) -> None:
        """As `Ask.refuse`."""
        self._answer(None, why)

    def _answer(self, value: object, why: str | None) -> None:
        request, entry = self._placed(value, why)
        self._run.checkpoints.reach(request, MARK)
        self._run.wait_here(self._send(request, entry))


# --- published values


async def publish(run: StepTaker, name: str, value: object) -> None:
    """Note the value. It is stored with the next entry, or before the function of the next step runs."""
    request = run.asked(f"publish:{name}")
    await run.reached(request, MARK)
    _note(run, request, name, value)


def publish_here(run: StepTaker, name: str, value: object) -> None:
    """The same, in a thread."""
    request = run.asked(f"publish:{name}")
    run.checkpoints.reach(request, MARK)
    _note(run, request, name, value)


def _note(run: StepTaker, request: StepRequest, name: str, value: object) -> None:
    if request.entry is None:
        text = _storable(f"the published value {name!r}", value, defaults.MAX_PUBLISHED_SIZE)
        _published(run, name, text)
        run.checkpoints.keep(request, Checkpoint(request.after))
        run.checkpoints.caught.add(request.key)
    run.checkpoints.end(request)


def publish_all_of(run: StepTaker, row: Record) -> None:
    """Publish what this row has published, which has made a try of a step, and note which streams it has written."""
    for key, text in row.checkpoints:
        if key.startswith(PUBLISHED):
            _published(run, key.removeprefix(PUBLISHED), text)
        elif key.startswith(STREAM):
            run.streams = run.streams or RunStreams(run)
            run.streams.adopt(key.removeprefix(STREAM), text)


def _published(run: StepTaker, name: str, text: str) -> None:
    if run.mailboxes.publish(name) > (most := defaults.MAX_PUBLISHED):
        raise BadStep(name, f"a job publishes under at most {most} names; use one name with a larger value")
    run.checkpoints.note((PUBLISHED + name, text))


def _storable(what: str, value: object, most: int) -> str:
    try:
        text = encode_any(value)
    except Unstorable as error:
        raise BadOption("value", f"{what}: {error}") from None
    if (size := len(text.encode())) > most:
        raise TooLarge(what, size, most, "store the data elsewhere and send a reference to it")
    return text


def decoded_as(text: str, kind: Any, method: str) -> Any:
    """A value that Treadle's codec has encoded, read as this type. Raises BadResult, which names the method."""
    return decode_any(text) if kind is Any else signature_of_kind(kind, method).decode_result(text)
