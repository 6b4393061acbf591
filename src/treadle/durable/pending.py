"""The rows and instants that suspended runs wait for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.model import NewJob, Outcome, Record
from treadle.durable.backend import EARLY
from treadle.policy import judge


class Pending(Struct, frozen=True):
    """The rows and the instant that a wait which is not over waits for.

    rows      the ids of jobs; the ending of one of them may end the wait
    new       rows that are stored when the run is suspended
    until     when the wait is over in any case, by the storage's clock
    sleep     the key of the sleep that ends then, if nothing else can end the wait
    needs_all  it ends when all of the rows have ended, or more than `failures_allowed` (None: any number) have failed
    """

    rows: tuple[str, ...] = ()
    new: tuple[NewJob, ...] = ()
    until: float | None = None
    sleep: str = ""
    needs_all: bool = False
    failures_allowed: int | None = None

    def suspended(self, record: Record, now: float) -> Outcome:
        """The outcome of a run that is suspended for this."""
        if not self.rows:
            assert self.until is not None
            return judge.asleep(record, self.sleep, max(self.until - now, EARLY), now)
        return replace(
            judge.awaiting(record, self.rows, self.new),
            required=None if self.needs_all else 1,
            failures_allowed=self.failures_allowed,
            delay=0.0 if self.until is None else max(self.until - now, EARLY),
        )


def first_of(parts: Sequence[Pending]) -> Pending:
    """The same for a run that continues when one of these waits may be over."""
    if len(parts) == 1:
        return parts[0]
    timed = [(part.until, part.sleep) for part in parts if part.until is not None]
    moment, sleep = min(timed, default=(None, ""))
    rows = dict.fromkeys(row for part in parts for row in part.rows)
    return Pending(tuple(rows), tuple([new for part in parts for new in part.new]), moment, sleep)
