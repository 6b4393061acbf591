"""Outcomes of ended jobs that the storage has not confirmed yet."""

from __future__ import annotations

from treadle.core.events import was_lost
from treadle.core.model import Outcome, Record
from treadle.worker.running_job import RunningJob

Ended = tuple[RunningJob, Outcome]


class Unconfirmed:
    """Each outcome is in `waiting`, or in `sent` under the dispatcher whose request carries it."""

    __slots__ = ("sent", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Ended] = []
        self.sent: dict[int, list[Ended]] = {}

    def add(self, run: RunningJob, outcome: Outcome) -> None:
        self.waiting.append((run, outcome))

    def take(self) -> list[Ended]:
        """Remove and return all waiting outcomes."""
        taken, self.waiting = self.waiting, []
        return taken

    def put_back(self, ended: list[Ended]) -> None:
        """Put back the outcomes of a failed request, before all others. Settling twice is safe (law 10)."""
        self.waiting[:0] = ended

    def runs(self, but: int | None = None) -> list[RunningJob]:
        """The runs whose outcomes are not confirmed, without those that dispatcher `but` has sent."""
        sent = [run for number, ended in self.sent.items() if number != but for run, _ in ended]
        return sent + [run for run, _ in self.waiting]


def settled_before(record: Record) -> int:
    """The version of the outcome after which this job was claimed, which the storage has applied; 0: the claim followed
    none, because it is the first one or the lease of an earlier one had expired."""
    return 0 if was_lost(record) else max(0, record.version - 2)
