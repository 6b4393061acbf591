"""Sentences about the history of a durable job: its restarts, and a limit that it nears."""

from __future__ import annotations

from treadle.admin.explain.locked import has
from treadle.admin.explain.wording import count
from treadle.core import defaults
from treadle.core.errors import BadStep
from treadle.core.model import BEGUN_WITH, OURS, ROUND, Record
from treadle.durable import forked_from
from treadle.policy.rounds import round_of


def durable(row: Record) -> str:
    """Nothing for a job that was not restarted and has used less than 80 percent of each limit."""
    steps = [(name, text) for name, text in row.checkpoints if not name.startswith(OURS)]
    size = sum(len(name) + len(text) for name, text in steps)
    says = has(row)
    if any(name == ROUND for name, _ in row.checkpoints):
        try:
            number = round_of(row.checkpoints).number
        except BadStep as error:
            return f" {error}."
        if number:
            says = f" Its function has begun anew {count(number, 'time')}, by restart() or a rerun."
    if (origin := forked_from(row)) is not None:
        start = "its start" if origin.step is None else f"its step {origin.step!r}"
        says += f" It was forked from job {origin.job}, at {start}."
    if steps and (version := dict(row.checkpoints).get(BEGUN_WITH)) is not None:
        says += f" It keeps to version {version} of its task, with which it has taken its steps."
    if len(steps) >= defaults.WARN_AT * defaults.MAX_STEPS or size >= defaults.WARN_AT * defaults.MAX_MEMO:
        says += (
            f" It nears a limit of durable code, with {count(len(steps), 'step')} of {defaults.MAX_STEPS:,} and "
            f"{size:,} of {defaults.MAX_MEMO:,} bytes; current().restart() begins a new history."
        )
    return says
