"""Waits of durable code, and sleeps.

A wait has an entry in the history once it is over. Until then it says what it waits for: rows whose ending may end it,
and an instant. A run that is suspended for several waits runs again as soon as one of them may be over.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from treadle.core.errors import BadOption, StepMismatch
from treadle.durable.backend import EARLY
from treadle.durable.checkpoints import AT_ONCE, SLEEP, Checkpoint, StepRequest
from treadle.durable.pending import Pending
from treadle.durable.step_taker import StepTaker
from treadle.policy.retry import seconds, until

T_co = TypeVar("T_co", covariant=True)


class Wait(Protocol):
    """A wait that the function asked for."""

    request: StepRequest
    kind: str

    async def look(self) -> Pending | None:
        """None: it is over, and its entry is kept; the caller stores it. Otherwise, what it waits for."""

    def value(self) -> Any:
        """Its value once it is over, from its entry. Raises the error that it ended with."""

    async def conclude(self) -> None:
        """Called when its entry is stored, and again by runs that may follow a crash before this has returned."""

    def lose(self) -> None:
        """It has lost a race, which is stored next: note that its jobs do not end with this one."""

    async def drop(self) -> None:
        """The function no longer waits: cancel the jobs that work for this wait alone."""


class Waiting(Coroutine[Any, Any, T_co]):
    """A sleep, a wait or a child: await it, or give it to `current().first(...)`."""

    __slots__ = ("_wait", "_work")

    def __init__(self, wait: Wait, work: Coroutine[Any, Any, T_co]) -> None:
        self._wait, self._work = wait, work

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()


def wait_of(waiting: Waiting[Any]) -> Wait:
    """The wait for which it stands."""
    return waiting._wait


class Sleep:
    """A sleep. Its entry has the instant at which it is over. One that was over when the job was claimed has none."""

    def __init__(
        self, run: StepTaker, request: StepRequest, length: float | timedelta | None, moment: datetime | None
    ) -> None:
        if (length is None) == (moment is None):
            raise BadOption("sleep", "give seconds or until=, not both")
        self._run, self.request = run, request
        self._length = None if length is None else seconds(length, "sleep")
        self._moment = moment
        self._claimed = (run.run.subject or run.run.record).started_at or 0.0
        remaining = until(moment, "sleep", self._claimed) if self._length is None else self._length
        self.kind = AT_ONCE if remaining <= EARLY else SLEEP

    async def look(self) -> Pending | None:
        run, request = self._run, self.request
        now, entry = run.moment(), run.checkpoints.entries.get(request.key)
        if entry is not None and entry.over:
            return None
        if entry is None:
            ends, remaining = self._first_end(now)
            is_unknown = self.kind == SLEEP
        elif isinstance(entry.until, float):
            ends = entry.until if self._length is None else min(entry.until, run.latest_moment() + self._length)
            remaining = 0.0 if entry is request.entry and run.came_due(request.key) else ends - now
            is_unknown = entry.until > self._claimed + EARLY
        else:
            raise StepMismatch(run.run.record.job.id, request.key, request.after, "another step of that name")
        if remaining > EARLY:
            if entry is None or entry.until != ends:
                run.checkpoints.keep(request, Checkpoint(request.after, until=ends))
            return Pending(until=ends, sleep=request.key)
        if is_unknown:
            # It has ended since the job was claimed, or the clock of the storage was set back since then. Nothing else
            # would show that: it is stored before the next effect.
            run.checkpoints.keep(request, Checkpoint((entry or request).after, until=min(now, ends), over=True))
        return None

    def _first_end(self, now: float) -> tuple[float, float]:
        """When a sleep that begins here ends, and in how many seconds."""
        if self._length is not None:
            return self._run.latest_moment() + self._length, self._length
        assert self._moment is not None
        remaining = until(self._moment, "sleep", now)
        return now + remaining, remaining

    def value(self) -> None:
        """A sleep has none."""
        self._run.checkpoints.pass_sleep(self.request)

    async def conclude(self) -> None:
        """Nothing works for a sleep."""

    def lose(self) -> None:
        """Nothing works for a sleep."""

    async def drop(self) -> None:
        """Nothing works for a sleep."""
