"""Defects that no review found, put in one at a time: they concern runs after the first one, acts, keys and limits.

Of most of them no rule took notice before 27 November 2026; for the others no scenario reached the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulate.mutants import BOOK, MEMORY
from treadle.core.model import ASKED, Record, Settled, State
from treadle.execution import runner
from treadle.policy import judge
from treadle.scheduling import ticker
from treadle.storage import admission, row_rules
from treadle.storage.machine import due, endings, keys, leasing, plan, queueing, reopen, settle, store
from treadle.workflow import signals

Patch = pytest.MonkeyPatch


def cancel_lost(patch: Patch) -> None:
    """A cancel of a running job only notifies its worker."""
    real = MEMORY.settle

    async def settled(self: Any, outcomes: Sequence[Any]) -> list[Settled]:
        rows = [self._jobs.get(out.id) for out in outcomes]
        kept = [
            out.reason != ASKED or row is None or row.state is not State.RUNNING
            for out, row in zip(outcomes, rows, strict=True)
        ]
        answers = iter(await real(self, [out for out, each in zip(outcomes, kept, strict=True) if each]))
        return [next(answers) if each else Settled("applied") for each in kept]

    patch.setattr(MEMORY, "settle", settled)


def _lost_as(patch: Patch, change: Callable[[Record, Record], Record]) -> None:
    real = row_rules.lost
    patch.setattr(due, "lost", lambda row, now: change(row, real(row, now)))


def attempts_forgotten(patch: Patch) -> None:
    """A lost lease sets the attempts back to 0."""
    _lost_as(patch, lambda before, after: replace(after, attempt=0))


def losses_forgotten(patch: Patch) -> None:
    """A lost lease is not counted."""
    _lost_as(patch, lambda before, after: replace(after, lost=before.lost))


def turn_lost(patch: Patch) -> None:
    """A job that was lost is queued behind all others."""
    _lost_as(patch, lambda before, after: replace(after, return_position=None))


def retried_at_once(patch: Patch) -> None:
    """A job that is to run again later is queued at once."""
    real = settle._go_on

    def go_on(rows: Any, old: Record, out: Any, *rest: Any) -> Any:
        return real(rows, old, replace(out, delay=0.0) if out.state is State.READY else out, *rest)

    patch.setattr(settle, "_go_on", go_on)


def releases_counted(patch: Patch) -> None:
    """A run that its worker releases counts as an attempt."""
    real = judge.released

    def released(*args: Any, **named: Any) -> Any:
        out = real(*args, **named)
        return replace(out, attempt=out.attempt + 1)

    patch.setattr(judge, "released", released)


def key_kept(patch: Patch) -> None:
    """A job keeps its key after it has ended."""
    patch.setattr(BOOK, "drop_key", lambda self, row: None)
    patch.setattr(keys, "holds", lambda row, now, leaving="": True)
    patch.setattr(plan, "holds", lambda row, now, leaving="": True)


def key_window_ignored(patch: Patch) -> None:
    """A key is free as soon as its job has ended, whatever its window."""
    for name in ("endings", "leasing", "keys"):
        patch.setattr(f"treadle.storage.machine.{name}.keeps_key", lambda row, now: False)


def key_until_ended(patch: Patch) -> None:
    """A key that is free once its job runs is kept until the ending."""
    real = leasing.Leasing.lease

    def lease(self: Any, row: Record) -> Record:
        leased: Record = real(self, row)
        if row.job.key is not None and row.job.key_until == "started":
            self._rows.give_key(row.job.key, row.job.id)
        return leased

    patch.setattr(leasing.Leasing, "lease", lease)


def pruned_early(patch: Patch) -> None:
    """Rows are kept for a minute, whatever they ask for."""
    patch.setattr(endings, "expires_at", lambda row, state, ended_at, keep=None: ended_at + 60.0)


def pruned_although_needed(patch: Patch) -> None:
    """Rows are pruned although an unfinished job needs them."""

    async def prune(self: Any, limit: int) -> int:
        now = self._begin()
        old = [row for row in self._jobs.values() if row.expires_at is not None and row.expires_at <= now]
        for row in old[:limit]:
            self._tables.forget(self._jobs.pop(row.job.id))
        return len(old[:limit])

    patch.setattr(MEMORY, "prune", prune)


def reopened_alone(patch: Patch) -> None:
    """A job that is retried leaves those that ended because of it as they are."""

    def would_reopen(rows: Any, row: Record) -> Any:
        return [row], {row.job.id: rows.dependents(row.job.id)}
        yield

    patch.setattr(reopen, "_jobs_to_reopen", would_reopen)


def slots_until_running(patch: Patch) -> None:
    """A job gives back its slot between two tries, although its limit is held until the ending."""
    for name in ("memory.tables", "machine.limits", "admission"):
        patch.setattr(f"treadle.storage.{name}.keeps_slots", lambda rules, key: False)


def bucket_refilled(patch: Patch) -> None:
    """A bucket is refilled three times as fast as its rate says."""
    real = admission.level

    def level(rule: Any, usage: Any, now: float) -> float:
        if rule.how == "bucket" and usage.tokens is not None:
            now += 2 * max(0.0, now - usage.at)
        return real(rule, usage, now)

    patch.setattr(admission, "level", level)


def ages_ignored(patch: Patch) -> None:
    """Jobs that age are queued in the order of their enqueue."""
    patch.setattr(queueing, "turn", lambda job, when: when)
    patch.setattr(store, "position", queueing.position)


def signal_of_another(patch: Patch) -> None:
    """A job reads the value of the signal that was read before."""
    real, last = MEMORY.get, dict[tuple[int, bool], Record]()

    async def get(self: Any, ids: Sequence[str]) -> list[Record | None]:
        rows: list[Record | None] = await real(self, ids)
        for at, row in enumerate(rows):
            if row is not None and row.job.id.startswith(signals.SIGNAL) and row.state is State.SUCCEEDED:
                kind = id(self), row.result is None
                other = last.get(kind, row)
                rows[at] = replace(row, job=replace(row.job, payload=other.job.payload), result=other.result)
                last[kind] = row
        return rows

    patch.setattr(MEMORY, "get", get)


def schedule_ends(patch: Patch) -> None:
    """Now and then a schedule sets its next tick to a time in 11 days."""
    real, number = ticker.changed, count(1)

    def changed(row: Record, checkpoints: Any, delay: float = 0.0) -> Any:
        return real(row, checkpoints, delay if next(number) % 6 else 1e6)

    patch.setattr(ticker, "changed", changed)


def results_reversed(patch: Patch) -> None:
    """A job gets the results that it waited for in the opposite order."""
    real = runner._passed

    async def passed(task: Any, run: Any, how: Any) -> Any:
        found = await real(task, run, how)
        return found[::-1] if how == "list" else found

    patch.setattr(runner, "_passed", passed)


def costly_passed(patch: Patch) -> None:
    """A cheap job takes the room for which a costly one before it waits."""
    patch.setattr(leasing.Leasing, "held_back_by", lambda *_: None)


def retry_overtaken(patch: Patch) -> None:
    """A job fails because of a child that was reopened after its worker had read it."""
    patch.setattr(settle, "_stale_because_reopened", lambda *_: None)


def siblings_pruned(patch: Patch) -> None:
    """Rows are pruned although a job would need them that a retry reopens."""
    patch.setattr("treadle.storage.memory.storage.kept_longer", lambda rows, now: {})


REPEATS: dict[str, tuple[Callable[[Patch], None], set[str]]] = {
    "cancel lost": (cancel_lost, {"cancel"}),
    "attempts forgotten": (attempts_forgotten, {"attempts", "invariant"}),
    "losses forgotten": (losses_forgotten, {"lost"}),
    "turn lost": (turn_lost, {"invariant"}),
    "retried at once": (retried_at_once, {"delay"}),
    "releases counted": (releases_counted, {"invariant"}),
    "key kept": (key_kept, {"key"}),
    "key window": (key_window_ignored, {"key"}),
    "key until ended": (key_until_ended, {"key"}),
    "pruned early": (pruned_early, {"acknowledged", "expected"}),
    "pruned although needed": (pruned_although_needed, {"expected", "after"}),
    "reopened alone": (reopened_alone, {"upstream", "invariant"}),
    "slots until running": (slots_until_running, {"slots"}),
    "bucket": (bucket_refilled, {"rate"}),
    "ages": (ages_ignored, {"order"}),
    "signal of another": (signal_of_another, {"signal", "expected"}),
    "schedule ends": (schedule_ends, {"invariant"}),
    "results reversed": (results_reversed, {"expected"}),
    "costly passed": (costly_passed, {"order"}),
    "retry overtaken": (retry_overtaken, {"invariant"}),
    "siblings pruned": (siblings_pruned, {"invariant"}),
}
"""Each with the rules of which one has to find it in the fleet of repeats."""
