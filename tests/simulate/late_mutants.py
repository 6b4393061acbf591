"""Defects of time, put in one at a time: sleeps and waits that end early, and jobs that start late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.model import Record, State
from treadle.durable import mailbox, steps
from treadle.durable.checkpoints import Checkpoint, Checkpoints
from treadle.policy import judge
from treadle.storage import admission
from treadle.storage.machine import leasing, queueing, settle, store

Patch = pytest.MonkeyPatch
HOUR = 3_600.0


def sleep_too_short(patch: Patch) -> None:
    """A durable sleep ends a tenth too early."""
    real = judge.asleep
    patch.setattr(judge, "asleep", lambda record, key, delay, now: real(record, key, 0.9 * delay, now))


def sleep_guessed_over(patch: Patch) -> None:
    """A run passes a sleep if the row has gone through two versions since the sleep began. A failure and the claim of
    its retry make as many."""
    real, began = Checkpoints.keep, dict[tuple[str, str], int]()

    def keep(self: Any, asked: Any, entry: Checkpoint) -> None:
        run = ids.running.get(None)
        if run is not None and isinstance(entry.until, float):
            began[self.job, asked.key] = run.record.version
        real(self, asked, entry)

    patch.setattr(Checkpoints, "keep", keep)
    patch.setattr(
        steps.Durable,
        "came_due",
        lambda self, key: began.get((self.run.record.job.id, key)) == self.run.record.version - 2,
    )


def wait_too_short(patch: Patch) -> None:
    """A wait for a signal ends a tenth too early."""
    real = mailbox.seconds
    patch.setattr(mailbox, "seconds", lambda length, what: real(length, what) * (0.9 if what == "timeout" else 1))


def retried_late(patch: Patch) -> None:
    """The first retry of a job is queued an hour late."""
    real = settle._go_on

    def go_on(rows: Any, old: Record, out: Any, *rest: Any) -> Any:
        retried = out.state is State.READY and out.attempt > old.attempt == 0
        return real(rows, old, replace(out, delay=out.delay + HOUR) if retried else out, *rest)

    patch.setattr(settle, "_go_on", go_on)


def delayed_late(patch: Patch) -> None:
    """A delayed job is queued a minute late."""
    real = store._first_row

    def first_row(rows: Any, new: Any, *rest: Any) -> Record:
        return replace(real(rows, replace(new, delay=new.delay + 60 * (new.delay > 0)), *rest), job=new)

    patch.setattr(store, "_first_row", first_row)


def released_late(patch: Patch) -> None:
    """A job that waited for others is queued a minute after the last of them has ended."""

    def release(rows: Any, row: Record) -> None:
        if row.job.task:
            queueing.schedule_job(rows, row, rows.now + 60)
        else:
            rows.put(row)

    patch.setattr("treadle.storage.machine.endings.end_wait", release)


def lost_late(patch: Patch) -> None:
    """A claim holds its lease for an hour more."""
    real = leasing.Leasing.until
    patch.setattr(leasing.Leasing, "until", lambda self, job: real(self, job) + HOUR)


def denied_check_spends(patch: Patch) -> None:
    """A job that one limit blocks counts as a start of its other limits, of which each has a rate."""
    real = admission.Admission.blocked_by

    def blocked_by(self: Any, costs: Iterable[tuple[str, int]], held: Any = ()) -> str | None:
        costs = tuple(costs)
        shut = real(self, costs, held)
        for key, cost in costs if shut is not None else ():
            rule = admission.rule_for(self.rules, key)
            if rule is not None and rule.rate is not None and key != shut:
                admission.spend(rule, self.of(key), cost, self.now)
                self.spent.add(key)
                self._levels.pop(key, None)
        return shut

    patch.setattr(admission.Admission, "blocked_by", blocked_by)


EARLY: dict[str, tuple[Callable[[Patch], None], str]] = {
    "sleep too short": (sleep_too_short, "mixed"),
    "sleep guessed over": (sleep_guessed_over, "orderly"),
    "wait too short": (wait_too_short, "orderly"),
}
LATE: dict[str, tuple[Callable[[Patch], None], str]] = {
    "retried late": (retried_late, "repeats"),
    "delayed late": (delayed_late, "orderly"),
    "released late": (released_late, "mixed"),
    "lost late": (lost_late, "repeats"),
    "denied check spends": (denied_check_spends, "rates"),
}
"""Each with the fleet that finds it."""
