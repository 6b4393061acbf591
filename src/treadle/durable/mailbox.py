"""What a run receives from its mailboxes, the answers that it gives, and the values that it publishes.

A message is received once: its value is an entry of the history, stored before the function gets it. Only then is its
row released, so that a job which lives for months does not keep the rows of its messages.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, BadStep, StepMismatch, TooLarge
from treadle.core.model import ERROR, PUBLISHED, Outcome, Record, State
from treadle.durable.backend import EARLY
from treadle.durable.checkpoints import Checkpoint, StepRequest, valued
from treadle.durable.failures import MESSAGE, Failure
from treadle.durable.step_codec import signature_of_kind
from treadle.policy import judge
from treadle.policy.retry import seconds
from treadle.policy.rounds import EMPTY, Mailbox, mailbox_note, mailboxes_of
from treadle.serialization.call_codec import Unstorable, decode_any, encode_any
from treadle.workflow.mailbox import ANSWER, asked_in, text_of
from treadle.workflow.signals import SEEN_AT_ONCE, check_signal, is_message, signal_id, signal_row, usable

if TYPE_CHECKING:
    from treadle.durable.step_taker import StepTaker

T_co = TypeVar("T_co", covariant=True)

RELEASED: Final = 32  # rows of received messages that one call releases


class Mailboxes:
    """Those of one run."""

    def __init__(self, run: StepTaker) -> None:
        self.run, self._record = run, run.run.record
        self._stored: dict[str, Mailbox] | None = None
        self._turns: dict[str, int] = {}  # of entries of this run: the last row used
        self._ahead: dict[str, list[tuple[int, Record]]] = {}  # messages that were read together with an earlier one
        self._signals: set[str] = set()  # received by `wait_for` in this run
        self._published: set[str] | None = None

    # --- receiving

    async def wait_for(self, name: str, request: StepRequest, timeout: float | timedelta | None, kind: Any) -> Any:
        """The value of the signal, which comes once in a round."""
        if request.entry is None and name in self._signals:
            raise BadStep(name, f"this run has already received the signal; wait for another name, such as '{name}:2'")
        entry = await self._entry(name, request, timeout, is_signal=True)
        self._signals.add(name)
        return decoded_as(entry.result or "null", kind, "wait_for")

    async def receive(self, name: str, request: StepRequest, timeout: float | timedelta | None, kind: Any) -> Any:
        """The value of the next message."""
        return decoded_as((await self._entry(name, request, timeout)).result or "null", kind, "receive")

    async def receive_ask(
        self, name: str, request: StepRequest, timeout: float | timedelta | None, kind: Any
    ) -> tuple[Mailboxes, str, Any, str]:
        """The arguments of an `Ask` for the next message."""
        entry = await self._entry(name, request, timeout)
        return (
            self,
            name,
            decoded_as(entry.result or "null", kind, "receive_ask"),
            entry.ask if isinstance(entry.ask, str) else "",
        )

    async def _entry(
        self, name: str, request: StepRequest, timeout: float | timedelta | None, is_signal: bool = False
    ) -> Checkpoint:
        """The entry of a message that was received. Raises TimeoutError, and Suspend to wait for one."""
        run, entry = self.run, request.entry
        before = self._turns.get(name)
        if entry is None:
            entry = await self._arrived(name, request, None if timeout is None else seconds(timeout, "timeout"))
            run.checkpoints.keep(request, entry)
            if isinstance(entry.turn, int):
                signalled = run._round.number if is_signal and not entry.gave_up else self._mailbox(name).signalled
                run.checkpoints.note(mailbox_note(name, Mailbox(entry.turn, signalled)))
            await run.backend.save(run.run)
        if isinstance(entry.turn, int):
            self._turns[name] = entry.turn
            if request.entry is None or run.checkpoints.following(request.key) is None:  # or the last run died here
                await self._release(name, entry.turn - 1 if before is None else before, entry.turn)
        if entry.gave_up:
            job, verb = self._record.job, "signal" if is_signal else "send"
            within = "in time" if timeout is None else f"within {seconds(timeout, 'timeout'):g} s"
            raise TimeoutError(
                f"{job.task} {job.id} did not receive {'the signal' if is_signal else 'a message in'} {name!r} "
                f"{within}; {command('jobs', verb, job.id, name)} sends it to a later wait"
            )
        if entry.result is None:
            raise StepMismatch(self._record.job.id, request.key, request.after, "another step of that name")
        return entry

    async def _arrived(self, name: str, request: StepRequest, timeout: float | None) -> Checkpoint:
        """The entry for a message that has arrived, or for a wait that timed out. Raises Suspend to wait for it."""
        run, row = self.run, self._record
        used = max(self._turns.get(name, 0), self._mailbox(name).turn)
        turn, stored = await self._row(name, used, timeout is not None)
        if stored is not None and is_message(stored):
            entry = valued(request, text_of(stored), False, turn=turn)
            return replace(entry, ask=tag) if (tag := asked_in(stored)) else entry
        if timeout != 0 and stored is None:
            to_deadline = None if row.deadline_at is None else max(EARLY, row.deadline_at - run._moment())
            limits = [limit for limit in (timeout, to_deadline) if limit is not None]
            # The row of an ended job ends at its deadline: while it is open, the workflow cannot be pruned.
            new = signal_row(row, name, turn, min(limits, default=defaults.SIGNAL_ROW))
            run._leave(judge.awaiting(row, (new.id,), (new,)))
        if timeout != 0 and stored is not None and not stored.state.final:
            run._leave(judge.awaiting(row, (stored.id,)))
        is_used = stored is not None and stored.state.final
        return Checkpoint(request.after, gave_up=True, turn=turn if is_used else used)

    async def _row(self, name: str, used: int, timed: bool) -> tuple[int, Record | None]:
        """The row in which this wait and a sender meet. A wait without a timeout uses the next row when a row has
        expired."""
        ahead = self._ahead.get(name, [])
        while ahead and ahead[0][0] <= used:
            ahead.pop(0)
        if ahead:
            return ahead.pop(0)
        start = used + 1
        while True:
            turns = range(start, start + SEEN_AT_ONCE)
            rows = await self.run.backend.get([signal_id(self._record.job.id, name, turn) for turn in turns])
            for at, (turn, stored) in enumerate(zip(turns, rows, strict=True)):
                if stored is None:
                    return turn, None
                if usable(check_signal(stored, self._record), self._record, timed):
                    self._ahead[name] = _messages(turns[at + 1 :], rows[at + 1 :])
                    return turn, stored
            start += SEEN_AT_ONCE

    def _mailbox(self, name: str) -> Mailbox:
        """The mailbox as the claim has read it."""
        if self._stored is None:
            self._stored = mailboxes_of(self._record.checkpoints)
        return self._stored.get(name, EMPTY)

    async def _release(self, name: str, before: int, turn: int) -> None:
        """Let the storage prune the rows of a group that the job has used. The last one of a group releases it."""
        last = turn // RELEASED * RELEASED
        if before >= last:
            return
        turns = range(last - RELEASED + 1, last + 1)
        rows = await self.run.backend.get([signal_id(self._record.job.id, name, turn) for turn in turns])
        outcomes = [
            Outcome(id=row.id, version=row.version, state=row.state if row.state.final else State.SUCCEEDED, keep=0.0)
            for row in rows
            if row is not None
        ]
        if outcomes:
            await self.run.backend.settle(outcomes)

    # --- answering

    async def answer(self, request: StepRequest, tag: str, entry: Checkpoint) -> None:
        """Store the answer, and then give it to the sender. The next run gives it again if this one dies in between."""
        run = self.run
        if request.entry is None:
            run.checkpoints.keep(request, entry)
            await run.backend.save(run.run)
        elif run.checkpoints.following(request.key) is not None:
            return
        else:
            entry = request.entry
        out = Outcome(id=ANSWER + tag, version=0, state=State.SUCCEEDED, result=entry.result)
        if isinstance(entry.failure, Failure):
            out = replace(out, state=State.FAILED, reason=ERROR, error=entry.failure.text)
        if tag:
            await run.backend.settle([out])
        run.checkpoints.end(request)

    def answering(self, name: str, value: object, why: str | None) -> tuple[StepRequest, Checkpoint]:
        """The place of an answer in the history, and its entry; with `why` it is a refusal."""
        self.run._stay(name)
        request = self.run.checkpoints.ask(f"answer:{name}")
        if why is not None:
            return request, request.entry_of(failure=Failure("AskRefused", message=why[:MESSAGE]))
        return request, valued(request, self._storable(f"the answer to {name!r}", value, self._most), False)

    # --- publishing

    def publish(self, name: str, value: object) -> None:
        """Note the value. It is stored with the next entry, or before the function of the next step runs."""
        self.run._stay(name)
        request = self.run.checkpoints.ask(f"publish:{name}")
        if request.entry is None:
            text = self._storable(f"the published value {name!r}", value, defaults.MAX_PUBLISHED_SIZE)
            if self._published is None:
                self._published = {key for key, _ in self._record.checkpoints if key.startswith(PUBLISHED)}
            self._published.add(PUBLISHED + name)
            if len(self._published) > (most := defaults.MAX_PUBLISHED):
                raise BadStep(name, f"a job publishes under at most {most} names; use one name with a larger value")
            self.run.checkpoints.keep(request, Checkpoint(request.after))
            self.run.checkpoints.note((PUBLISHED + name, text))
            self.run.checkpoints.caught.add(request.key)
        self.run.checkpoints.end(request)

    @property
    def _most(self) -> int:
        return self.run.backend.sizes.step

    def _storable(self, what: str, value: object, most: int) -> str:
        try:
            text = encode_any(value)
        except Unstorable as error:
            raise BadOption("value", f"{what}: {error}") from None
        if (size := len(text.encode())) > most:
            raise TooLarge(what, size, most, "store the data elsewhere and send a reference to it")
        return text


class AnyAsk(Generic[T_co]):
    """A message that takes one answer."""

    def __init__(self, mailboxes: Mailboxes, name: str, value: T_co, tag: str) -> None:
        self._mailboxes, self._name, self._tag, self._answered = mailboxes, name, tag, False
        self.value = value

    def _given(self, value: object, why: str | None) -> tuple[StepRequest, str, Checkpoint]:
        if self._answered:
            raise BadStep(f"answer:{self._name}", "this message has its answer; each takes one")
        request, entry = self._mailboxes.answering(self._name, value, why)
        self._answered = True
        return request, self._tag, entry


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
        request, tag, entry = self._given(value, why)
        return self._mailboxes.run.awaited(request.key, lambda: self._mailboxes.answer(request, tag, entry))


class SynchronousAsk(AnyAsk[T_co]):
    """`Ask` for functions in threads: its methods return when the answer is sent."""

    def answer(self, value: object = None) -> None:
        """As `Ask.answer`."""
        self._mailboxes.run.wait_here(self._mailboxes.answer(*self._given(value, None)))

    def refuse(self, why: str) -> None:
        """As `Ask.refuse`."""
        self._mailboxes.run.wait_here(self._mailboxes.answer(*self._given(None, why)))


def decoded_as(text: str, kind: Any, method: str) -> Any:
    """A value that Treadle's codec has encoded, read as this type. Raises BadResult, which names the method."""
    return decode_any(text) if kind is Any else signature_of_kind(kind, method).decode_result(text)


def _messages(turns: range, rows: Sequence[Record | None]) -> list[tuple[int, Record]]:
    """The messages at the beginning of these rows."""
    messages = []
    for turn, stored in zip(turns, rows, strict=True):
        if stored is None or not is_message(stored):
            break
        messages.append((turn, stored))
    return messages
