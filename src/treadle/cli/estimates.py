"""Estimates for people: when a job starts, when a queue is empty, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.admin import Change, Estimate, QueuePlan, Range
from treadle.cli.output import data, facts, note, table
from treadle.cli.target import Target
from treadle.core.clock import moment_text
from treadle.core.words import lasts, plural


def repeated(target: Target, estimate: Any) -> Any:
    """The estimate with commands that act on this storage."""
    changes = [
        replace(change, command=change.command and target.repeating(change.command)) for change in estimate.changes
    ]
    return replace(estimate, changes=tuple(changes))


def show_estimate(estimate: Estimate) -> None:
    """Print when a job starts and ends, and what would let it start earlier."""
    data(estimate.explanation)
    if estimate.start is not None or estimate.end is not None:
        facts(
            [
                ("starts", when(estimate.start, estimate.at)),
                ("ends", when(estimate.end, estimate.at)),
                ("computed from", _basis(estimate.simulations, estimate.ahead, estimate.left_out)),
            ]
        )
    elif estimate.simulations:
        data("Estimate: it does not start by itself.")
    _changes("starts", estimate.at, estimate.start, estimate.changes)
    _notes(estimate.assumptions)


def show_plan(plan: QueuePlan) -> None:
    """Print what becomes of a queue."""
    waiting = (
        f"{plan.queued:,} queued, {plan.running:,} running, {plan.blocked:,} blocked, {plan.scheduled:,} scheduled"
    )
    facts(
        [
            ("queue", plan.queue),
            ("jobs", waiting),
            ("workers", f"{plan.workers:,} with {plural(plan.slots, 'slot')}"),
            ("arriving", f"{pace(plan.arriving)} (median of the last 5 minutes)"),
            ("starting", None if plan.leaving is None else f"{pace(plan.leaving)} until it is empty"),
            ("utilisation", _utilisation(plan)),
            ("bottleneck", plan.bottleneck),
            ("empty", _empty(plan)),
            ("computed from", _basis(plan.simulations, plan.queued - plan.left_out, plan.left_out)),
        ]
    )
    _changes("empty", plan.at, plan.empty, plan.changes)
    _notes(plan.assumptions)


def _utilisation(plan: QueuePlan) -> str | None:
    """The share of its slots that arriving jobs keep busy."""
    if plan.utilisation is None:
        return None
    behind = "; it falls behind" if plan.utilisation > 1 else ""
    return f"{plan.utilisation:.0%} of the slots by the jobs that arrive{behind}"


def _empty(plan: QueuePlan) -> str:
    if not plan.queued and not plan.blocked:
        return "now"
    return when(plan.empty, plan.at) or "not within a week, or not by itself"


def when(moment: Range | None, now: float) -> str | None:
    """A moment with its range: `2026-11-26 05:20:10 UTC, in 40 s (35 s to 52 s)`."""
    if moment is None:
        return None
    ends = f"{lasts(max(0.0, moment.low - now))} to {lasts(max(0.0, moment.high - now))}"
    return f"{moment_text(moment.median)}, in {lasts(max(0.0, moment.median - now))} ({ends})"


def pace(jobs: float) -> str:
    """A number of jobs a second, minute or hour, so that it is at least 1: `3.2 jobs/s`."""
    for unit, seconds in (("s", 1), ("min", 60)):
        if jobs * seconds >= 1 or jobs == 0:
            return f"{jobs * seconds:,.1f} jobs/{unit}"
    return f"{jobs * 3600:,.1f} jobs/h"


def _basis(simulations: int, jobs: int, left_out: int) -> str | None:
    if not simulations:
        return None
    more = f"; {left_out:,} further jobs ahead are taken to be alike" if left_out else ""
    return f"{plural(simulations, 'virtual run')} of {plural(max(0, jobs), 'job')} ahead{more}"


def _changes(what: str, now: float, as_is: Range | None, changes: Sequence[Change]) -> None:
    """Print the table of changes. Its first line is the estimate without any change."""
    if not changes:
        return
    rows: list[Sequence[object]] = [("as it is", _in(as_is, now), _spread(as_is, now), None)]
    rows += [(change.what, _in(change.when, now), _spread(change.when, now), change.command) for change in changes]
    data("")
    table(("change", what, "range", "command"), rows, "")


def _in(moment: Range | None, now: float) -> str:
    return "never" if moment is None else f"in {lasts(max(0.0, moment.median - now))}"


def _spread(moment: Range | None, now: float) -> str | None:
    if moment is None:
        return None
    return f"{lasts(max(0.0, moment.low - now))} to {lasts(max(0.0, moment.high - now))}"


def _notes(assumptions: Sequence[str]) -> None:
    if assumptions:
        note(f"assumed: {'; '.join(assumptions)}")
