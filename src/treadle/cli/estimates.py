"""Estimates for people: when a job starts, when a queue is empty, and what would change that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from treadle.cli.output import data, facts, note, table
from treadle.core.clock import moment_text
from treadle.core.words import lasts, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treadle.admin import Change, Estimate, QueuePlan, Range
    from treadle.cli.target import Target


def repeated(target: Target, found: Any) -> Any:
    """The estimate with commands that act on this storage."""
    changes = [replace(each, command=each.command and target.repeating(each.command)) for each in found.changes]
    return replace(found, changes=tuple(changes))


def show_estimate(found: Estimate) -> None:
    """Print when a job starts and ends, and what would let it start earlier."""
    data(found.explanation)
    if found.start is None and found.end is None:
        if found.simulations:
            data("Estimate: it does not start by itself.")
        _changes("starts", found.at, None, found.changes)
        _notes(found.assumptions)
        return
    facts(
        [
            ("starts", when(found.start, found.at)),
            ("ends", when(found.end, found.at)),
            ("computed from", _basis(found.simulations, found.ahead, found.left_out)),
        ]
    )
    _changes("starts", found.at, found.start, found.changes)
    _notes(found.assumptions)


def show_plan(found: QueuePlan) -> None:
    """Print what becomes of a queue."""
    waiting = (
        f"{found.queued:,} queued, {found.running:,} running, {found.blocked:,} blocked, {found.scheduled:,} scheduled"
    )
    facts(
        [
            ("queue", found.queue),
            ("jobs", waiting),
            ("workers", f"{found.workers:,} with {plural(found.slots, 'slot')}"),
            ("arriving", f"{pace(found.arriving)} (median of the last 5 minutes)"),
            ("starting", None if found.leaving is None else f"{pace(found.leaving)} until it is empty"),
            ("utilisation", _utilisation(found)),
            ("bottleneck", found.bottleneck),
            ("empty", _empty(found)),
            ("computed from", _basis(found.simulations, found.queued - found.left_out, found.left_out)),
        ]
    )
    _changes("empty", found.at, found.empty, found.changes)
    _notes(found.assumptions)


def _utilisation(found: QueuePlan) -> str | None:
    """The share of its slots that arriving jobs keep busy."""
    if found.utilisation is None:
        return None
    behind = "; it falls behind" if found.utilisation > 1 else ""
    return f"{found.utilisation:.0%} of the slots by the jobs that arrive{behind}"


def _empty(found: QueuePlan) -> str:
    if not found.queued and not found.blocked:
        return "now"
    return when(found.empty, found.at) or "not within a week, or not by itself"


def when(found: Range | None, now: float) -> str | None:
    """A moment with its range: `2026-11-26 05:20:10 UTC, in 40 s (35 s to 52 s)`."""
    if found is None:
        return None
    ends = f"{lasts(max(0.0, found.low - now))} to {lasts(max(0.0, found.high - now))}"
    return f"{moment_text(found.median)}, in {lasts(max(0.0, found.median - now))} ({ends})"


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
    """The table of changes, with the situation as it is in the first line."""
    if not changes:
        return
    rows: list[Sequence[object]] = [("as it is", _in(as_is, now), _spread(as_is, now), None)]
    rows += [(each.what, _in(each.when, now), _spread(each.when, now), each.command) for each in changes]
    data("")
    table(("change", what, "range", "command"), rows, "")


def _in(found: Range | None, now: float) -> str:
    return "never" if found is None else f"in {lasts(max(0.0, found.median - now))}"


def _spread(found: Range | None, now: float) -> str | None:
    if found is None:
        return None
    return f"{lasts(max(0.0, found.low - now))} to {lasts(max(0.0, found.high - now))}"


def _notes(assumptions: Sequence[str]) -> None:
    if assumptions:
        note(f"assumed: {'; '.join(assumptions)}")
