"""Defects by which a job pays for what another one did, put in one at a time; see `policy/guilt.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core.model import LOST, Outcome, State
from treadle.policy import guilt, judge
from treadle.storage import row_rules
from treadle.storage.machine import due
from treadle.worker.census import Census
from treadle.worker.trials import Trials

Patch = pytest.MonkeyPatch


def leases_are_guilt(patch: Patch) -> None:
    """Every lost lease counts, whatever else ran there: the rule until November 2026."""

    def lost_too_often(record: Any, rules: Any) -> Outcome | None:
        if record.lost - guilt.guilt_of(record).cleared < rules.max_lost:
            return None
        return Outcome(
            id=record.job.id,
            version=record.version,
            state=State.FAILED,
            attempt=record.attempt,
            reason=LOST,
            error=f"lost (max_lost={rules.max_lost})",
        )

    patch.setattr(judge, "lost_too_often", lost_too_often)
    patch.setattr(Trials, "is_due", staticmethod(lambda run: False))


def not_alone(patch: Patch) -> None:
    """A suspect does not wait for the other jobs of its process."""

    def look(self: Any) -> None:
        with self._lock:
            if self._alone is not None or not self._waiting:
                return
            waiting = self._alone = self._waiting.popleft()
        waiting.member.loop.call_soon_threadsafe(waiting.granted)

    patch.setattr(Census, "look", look)


def claims_go_on(patch: Patch) -> None:
    """While a suspect runs alone, its worker claims other jobs."""
    real = Census.begin_claim

    def begin_claim(self: Any, member: Any) -> bool:
        closed, self.closed = self.closed, False
        try:
            return real(self, member)
        finally:
            self.closed = closed

    patch.setattr(Census, "begin_claim", begin_claim)
    patch.setattr(Trials, "look", lambda self: bool(self.census.look()))


def attempt_taken(patch: Patch) -> None:
    """A lost lease counts as an attempt."""
    real = row_rules.lost
    patch.setattr(due, "lost", lambda row, now: replace(real(row, now), attempt=row.attempt + 1))


GUILT: dict[str, Callable[[Patch], None]] = {
    "leases are guilt": leases_are_guilt,
    "not alone": not_alone,
    "claims go on": claims_go_on,
    "attempt taken": attempt_taken,
}
