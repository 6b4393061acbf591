"""Compares stored schedules with those that the code declares, and checks the stored calls of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treadle.admin.code_check.findings import Findings
from treadle.core.command_lines import command
from treadle.core.model import NewJob, Record
from treadle.scheduling import UNREADABLE
from treadle.scheduling.ticker import TASK, Declared, ScheduleEntry

CheckCall = Callable[[NewJob], str | None]
"""Why this code cannot run such a job; None: it can."""


def is_schedule(row: Record) -> bool:
    """Whether the row belongs to a schedule."""
    return row.job.task.partition(":")[0] == TASK


def look(row: Record, declared: Mapping[str, Declared], check: CheckCall, findings: Findings) -> None:
    """Check the row of one schedule."""
    try:
        entry = ScheduleEntry(row)
    except UNREADABLE as error:
        findings.add(
            "schedule",
            row.job.key or row.job.id,
            f"its row cannot be read: {error}",
            "`treadle doctor --repair` removes it",
            example=row.job.id,
        )
        return
    stored, known = entry.definition, declared.get(entry.definition.name)
    if row.job.task != TASK:  # code declares it
        if known is None:
            _note(
                findings,
                row,
                stored.name,
                f"this code does not declare it any more: it makes no more jobs of {stored.task}",
                f"after the deployment, {command('schedules', 'delete', stored.name)} removes its row",
            )
        elif entry.code != known.definition.text():
            _note(
                findings,
                row,
                stored.name,
                f"this code declares {known.definition.timing} of {known.definition.task}, stored is {stored.timing} "
                f"of {stored.task}",
                "the first worker with this code replaces it",
            )
        return
    if known is not None:
        _note(
            findings,
            row,
            stored.name,
            "it was created at run time, and this code declares one of the same name",
            "the first worker with this code replaces it; give one of the two another name to keep both",
        )
    elif stored.job is not None and (why := check(stored.job)) is not None:
        findings.add(
            "schedule",
            stored.name,
            f"the jobs that it makes: {why}",
            "change the stored call with app.schedules.upsert(), or keep the code compatible",
            example=row.job.id,
        )


def _note(findings: Findings, row: Record, name: str, what: str, advice: str) -> None:
    findings.add("schedule", name, what, advice, level="note", example=row.job.id)
