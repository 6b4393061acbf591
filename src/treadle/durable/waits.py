"""Waits of durable code: sleeps and signals, and how a run is suspended for any wait.

A wait has an entry in the history once it is over. Until then it says what it waits for: rows whose ending may end it,
and an instant. A run that is suspended for several waits runs again as soon as one of them may be over.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, BadStep, StepMismatch
from treadle.core.model import ASKED, Outcome, Record, State
from treadle.durable.backend import EARLY
from treadle.durable.checkpoints import Checkpoint, StepRequest, valued
from treadle.durable.pending import Pending
from treadle.durable.step_codec import signature_of_kind
from treadle.durable.step_taker import StepTaker
from treadle.policy.retry import seconds, until
from treadle.serialization.call_codec import decode_any
from treadle.workflow.signals import SEEN_AT_ONCE, check_signal, signal_id, signal_row, usable

T_co = TypeVar("T_co", covariant=True)


class Wait(Protocol):
    """A wait that the function asked for."""

    request: StepRequest

    async def look(self) -> Pending | None:
        """None: it is over, and its entry is kept; the caller stores it. Otherwise, what it waits for."""

    def value(self) -> Any:
        """Its value once it is over, from its entry. Raises the error that it ended with."""

    async def conclude(self) -> None:
        """Called when its entry is stored, and again by runs that may follow a crash before this has returned."""

    async def drop(self) -> None:
        """The function no longer waits: cancel the jobs that work for this wait alone."""


class Waiting(Coroutine[Any, Any, T_co]):
    """A sleep, a wait or a child: await it, or give it to `current().first(...)`."""

    __slots__ = ("_work", "wait")

    def __init__(self, wait: Wait, work: Coroutine[Any, Any, T_co]) -> None:
        self.wait, self._work = wait, work

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()


class Sleep:
    """A sleep. Its entry has the instant at which it is over."""

    def __init__(
        self, run: StepTaker, request: StepRequest, length: float | timedelta | None, moment: datetime | None
    ) -> None:
        if (length is None) == (moment is None):
            raise BadOption("sleep", "give seconds or until=, not both")
        self._run, self.request = run, request
        self._length = None if length is None else seconds(length, "sleep")
        self._moment = moment

    async def look(self) -> Pending | None:
        run, request = self._run, self.request
        now, entry = run.moment(), run.checkpoints.entries.get(request.key)
        if entry is None:
            remaining = self._length if self._moment is None else until(self._moment, "sleep", now)
            assert remaining is not None
        elif isinstance(entry.until, float):
            is_over = entry is request.entry and run.came_due(request.key)
            remaining = 0.0 if is_over else entry.until - now
            if self._length is not None:
                remaining = min(remaining, self._length)
        else:
            raise StepMismatch(run.run.record.job.id, request.key, request.after, "another step of that name")
        if remaining > EARLY:
            if entry is None or entry.until != now + remaining:
                run.checkpoints.keep(request, Checkpoint(request.after, until=now + remaining))
            return Pending(until=now + remaining, sleep=request.key)
        if entry is not None and isinstance(entry.until, float) and entry.until > now + EARLY:
            # The storage's clock was set back, and this time was written before: for later runs the sleep is over, too.
            run.checkpoints.keep(request, Checkpoint(entry.after, until=now))
        return None

    def value(self) -> None:
        """A sleep has none."""

    async def conclude(self) -> None:
        """Nothing works for a sleep."""

    async def drop(self) -> None:
        """Nothing works for a sleep."""


class SignalWait:
    """The wait for a signal. Its entry has the value, or says that it timed out; before, it has the end of the timeout.

    The row in which the wait and the signal are joined stays open if the wait times out or is dropped: a later wait for
    the same name uses it.
    """

    def __init__(
        self, run: StepTaker, request: StepRequest, name: str, timeout: float | timedelta | None, kind: Any
    ) -> None:
        self._run, self.request, self._name, self._kind = run, request, name, kind
        self._timeout = None if timeout is None else seconds(timeout, "timeout")
        run.expected.add(name)

    async def look(self) -> Pending | None:
        run, request, row = self._run, self.request, self._run.run.record
        entry = run.checkpoints.entries.get(request.key)
        if entry is not None and (entry.gave_up or entry.result is not None):
            return None
        if self._name in run.received:
            text = f"this run has already received the signal; wait for another name, such as '{self._name}:2'"
            raise BadStep(self._name, text)
        now = run.moment()
        ends = None if self._timeout is None else now + self._timeout
        if entry is not None and isinstance(entry.until, float):
            ends = entry.until
        used = run.waited.get(self._name, 0)
        turn, signal = await self._row(used)
        if signal is not None and signal.state is State.SUCCEEDED:
            run.checkpoints.keep(request, valued(request, signal.result or "null", False, turn=turn))
            return None
        if ends is not None and ends - now <= EARLY:
            run.checkpoints.keep(request, Checkpoint(request.after, gave_up=True, turn=used))
            return None
        if ends is not None and entry is None:
            run.checkpoints.keep(request, Checkpoint(request.after, until=ends))
        if signal is not None:
            return Pending((signal.id,), until=ends)
        to_deadline = defaults.SIGNAL_ROW if row.deadline_at is None else max(EARLY, row.deadline_at - now)
        # The row of an ended job ends at its deadline: while it is open, the workflow cannot be pruned.
        new = signal_row(row, self._name, turn, min(to_deadline, defaults.SIGNAL_ROW))
        return Pending((new.id,), (new,), ends)

    async def _row(self, used: int) -> tuple[int, Record | None]:
        """The row in which this wait and the signal are joined. A wait uses the next row when a row has expired."""
        row, start = self._run.run.record, used + 1
        while True:
            turns = range(start, start + SEEN_AT_ONCE)
            rows = await self._run.backend.get([signal_id(row.job.id, self._name, turn) for turn in turns])
            for turn, signal in zip(turns, rows, strict=True):
                if signal is not None:
                    check_signal(signal, row)
                if signal is None or usable(signal):
                    return turn, signal
            start += SEEN_AT_ONCE

    def value(self) -> Any:
        run, request = self._run, self.request
        entry = run.checkpoints.entries[request.key]
        if isinstance(entry.turn, int):
            run.waited[self._name] = entry.turn
        if entry.gave_up:
            job = run.run.record.job
            within = "in time" if self._timeout is None else f"within {self._timeout:g} s"
            raise TimeoutError(
                f"{job.task} {job.id} did not receive the signal {self._name!r} {within}; "
                f"{command('jobs', 'signal', job.id, self._name)} sends it to a later wait"
            )
        run.received.add(self._name)
        run.expected.discard(self._name)
        text = entry.result
        if text is None:
            raise StepMismatch(run.run.record.job.id, request.key, request.after, "another step of that name")
        kind = self._kind
        return decode_any(text) if kind is Any else signature_of_kind(kind, "wait_for").decode_result(text)

    async def conclude(self) -> None:
        """The row has ended, or stays for a later wait."""

    async def drop(self) -> None:
        """The row stays, for a later wait."""


async def end_signals(run: StepTaker) -> None:
    """The job ends: end the rows of signals that its function no longer waits for. While such a row is open, the
    workflow cannot be pruned."""
    job = run.run.record.job.id
    rows = await run.backend.get([signal_id(job, name, run.waited.get(name, 0) + 1) for name in run.expected])
    error = f"job {job} has ended"
    ended = [
        Outcome(id=row.id, version=row.version, state=State.CANCELLED, reason=ASKED, error=error)
        for row in rows
        if row is not None and row.job.parent == job and not row.state.final
    ]
    if ended:
        await run.backend.settle(ended)
