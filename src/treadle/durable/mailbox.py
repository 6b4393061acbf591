"""Receives messages and signals in a run, answers them, and publishes values.

A message is received once: its value is an entry of the history, stored before the function gets it. Only then is its
row released, so that a job which lives for months does not keep the rows of its messages.
"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, BadStep, StepMismatch, TooLarge
from treadle.core.model import ASKED, ERROR, PUBLISHED, Outcome, Record, State
from treadle.durable.backend import EARLY
from treadle.durable.checkpoints import MARK, WAIT, Checkpoint, StepRequest, valued
from treadle.durable.failures import MESSAGE, Failure
from treadle.durable.pending import Pending
from treadle.durable.step_codec import signature_of_kind
from treadle.durable.step_taker import StepTaker
from treadle.policy.retry import seconds
from treadle.policy.rounds import Mailbox, mailbox_note
from treadle.serialization.call_codec import Unstorable, decode_any, encode_any
from treadle.workflow.mailbox import ANSWER, asked_in, text_of
from treadle.workflow.signals import SEEN_AT_ONCE, check_signal, is_message, signal_id, signal_row, usable

T_co = TypeVar("T_co", covariant=True)

RELEASED: Final = 32  # rows of received messages that one call releases


class MailboxWait:
    """The wait for the next message of a mailbox. Its entry has the value, or says that it timed out; before, it has
    the end of the timeout.

    The row in which the wait and a sender meet stays open if the wait times out or is dropped: a later wait for the
    same name uses it.
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
        run.mailboxes.expected.add(name)

    async def look(self) -> Pending | None:
        """See `Wait`."""
        run, request, row = self._run, self.request, self._run.run.record
        entry = run.checkpoints.entries.get(request.key)
        if _is_over(entry):
            return None
        run.refuse_message()
        now = run.moment()
        ends = None if self._timeout is None else now + self._timeout
        if entry is not None and isinstance(entry.until, float):
            ends = entry.until
        turn, stored = await self._row()
        if stored is not None and is_message(stored):
            self._take(turn, stored)
            return None
        if ends is not None and ends - now <= EARLY:
            run.checkpoints.keep(request, Checkpoint(request.after, gave_up=True))
            return None
        if ends is not None and entry is None:
            run.checkpoints.keep(request, Checkpoint(request.after, until=ends))
        if stored is not None:
            return Pending((stored.id,), until=ends)
        to_deadline = defaults.SIGNAL_ROW if row.deadline_at is None else max(EARLY, row.deadline_at - now)
        # The row of an ended job ends at its deadline: while it is open, the workflow cannot be pruned.
        new = signal_row(row, self._name, turn, min(to_deadline, defaults.SIGNAL_ROW))
        return Pending((new.id,), (new,), ends)

    def _take(self, turn: int, stored: Record) -> None:
        """Keep the entry of a message, and how far the mailbox is read."""
        checkpoints = self._run.checkpoints
        entry = valued(self.request, text_of(stored), False, turn=turn)
        tag = asked_in(stored)
        checkpoints.keep(self.request, replace(entry, ask=tag) if tag else entry)
        checkpoints.note(mailbox_note(self._name, Mailbox(turn, self._signalled())))

    def _signalled(self) -> int | None:
        return self._run.mailboxes.stored(self._name).signalled

    async def _row(self) -> tuple[int, Record | None]:
        """The row in which this wait and a sender meet. A wait uses the next row when a row has expired."""
        job, mailboxes = self._run.run.record, self._run.mailboxes
        used = mailboxes.used(self._name)
        if (ahead := mailboxes.ahead(self._name, used)) is not None:
            return ahead
        start = used + 1
        while True:
            turns = range(start, start + SEEN_AT_ONCE)
            rows = await self._run.backend.get([signal_id(job.id, self._name, turn) for turn in turns])
            for at, (turn, stored) in enumerate(zip(turns, rows, strict=True)):
                if stored is None:
                    return turn, None
                if usable(check_signal(stored, job)):
                    mailboxes.read_ahead(self._name, turns[at + 1 :], rows[at + 1 :])
                    return turn, stored
            start += SEEN_AT_ONCE

    def value(self) -> Any:
        """See `Wait`."""
        run, request = self._run, self.request
        entry = run.checkpoints.entries[request.key]
        if entry.gave_up:
            job = run.run.record.job
            within = "in time" if self._timeout is None else f"within {self._timeout:g} s"
            raise TimeoutError(f"{job.task} {job.id} did not receive {self._missing(job.id, within)}")
        if entry.result is None:
            raise StepMismatch(run.run.record.job.id, request.key, request.after, "another step of that name")
        self._arrived(entry)
        value = decoded_as(entry.result, self._kind, self.METHOD)
        if self._ask is None:
            return value
        return self._ask(run, self._name, value, entry.ask if isinstance(entry.ask, str) else "")

    def _arrived(self, entry: Checkpoint) -> None:
        mailboxes = self._run.mailboxes
        mailboxes.expected.discard(self._name)
        if isinstance(entry.turn, int):
            mailboxes.use(self._name, entry.turn)

    def _missing(self, job: str, within: str) -> str:
        sends = command("jobs", "send", job, self._name)
        return f"a message in {self._name!r} {within}; {sends} sends one to a later wait"

    async def conclude(self) -> None:
        """Let the storage prune the rows of a group that the job has received. The last one of a group releases it."""
        run, turn = self._run, self._run.checkpoints.entries[self.request.key].turn
        if not isinstance(turn, int):
            return
        before, last = run.mailboxes.use(self._name, turn), turn // RELEASED * RELEASED
        if before >= last:
            return
        turns = range(last - RELEASED + 1, last + 1)
        rows = await run.backend.get([signal_id(run.run.record.job.id, self._name, turn) for turn in turns])
        states = [(row, row.state if row.state.final else State.SUCCEEDED) for row in rows if row is not None]
        if states:
            await run.backend.settle(
                [Outcome(id=row.id, version=row.version, state=state, keep=0.0) for row, state in states]
            )

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
        if not _is_over(entry) and self._name in self._run.mailboxes.received:
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


def _is_over(entry: Checkpoint | None) -> bool:
    """Whether the wait has its value, or has timed out."""
    return entry is not None and (entry.gave_up or entry.has_value)


async def end_signals(run: StepTaker) -> None:
    """The job ends: end the rows of mailboxes that its function no longer waits for. While such a row is open, the
    workflow cannot be pruned."""
    job = run.run.record.job.id
    rows = await run.backend.get(
        [signal_id(job, name, run.mailboxes.used(name) + 1) for name in run.mailboxes.expected]
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

    def __init__(self, run: StepTaker, name: str, value: T_co, tag: str) -> None:
        self._run, self._name, self._tag, self._is_answered = run, name, tag, False
        self.value = value

    def _placed(self, value: object, why: str | None) -> tuple[StepRequest, Checkpoint]:
        """The place of the answer in the history, and its entry; with `why` it is a refusal."""
        run, name = self._run, f"answer:{self._name}"
        if self._is_answered:
            raise BadStep(name, "this message has its answer; each takes one")
        request = run.asked(name)
        if why is None:
            text = _storable(f"the answer to {self._name!r}", value, run.backend.sizes.step)
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

    A message of `app.jobs.send` takes an answer, too, which nobody reads. An answer that comes after the sender has
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
        if run.mailboxes.publish(name) > (most := defaults.MAX_PUBLISHED):
            raise BadStep(name, f"a job publishes under at most {most} names; use one name with a larger value")
        run.checkpoints.keep(request, Checkpoint(request.after))
        run.checkpoints.note((PUBLISHED + name, text))
        run.checkpoints.caught.add(request.key)
    run.checkpoints.end(request)


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
