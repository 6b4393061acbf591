"""The result of a check: groups of jobs with the same problem, counted, each with one example."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.admin.failure_groups import signature
from treadle.core.command_lines import typed
from treadle.core.model import Record

Kind = Literal[
    "task", "arguments", "result", "reducer", "step", "signal", "schedule", "queue", "limit", "worker", "outbox"
]
Level = Literal["break", "note"]
GROUPS = 1_000  # groups that are kept apart; further misfits count in the group of their task and parameter


class Finding(Struct, kw_only=True):
    """One group.

    level    break: jobs that this code will fail, or never run. note: worth knowing before a deployment
    kind     what does not fit
    subject  the task, the queue, the schedule or the limit; of a worker the task that it lacks the place for
    what     what was found, of the example
    advice   what to do
    jobs     how many jobs, or 1 for a schedule or a limit
    states   these jobs by state
    example  the id of one of them
    """

    level: Level
    kind: Kind
    subject: str
    what: str
    advice: str
    jobs: int = 0
    states: dict[str, int] = {}
    example: str | None = None


class Findings:
    """Collects findings in groups, in the order in which the first of each was found."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], Finding] = {}
        self.place: str | None = None  # the place of the rows that are added now, named in place of their state

    def add(
        self,
        kind: Kind,
        subject: str,
        what: str,
        advice: str,
        *,
        level: Level = "break",
        place: str = "",
        row: Record | None = None,
        example: str | None = None,
        state: str | None = None,
    ) -> None:
        """Count one. `place`: distinguishes groups of the same kind and subject, in addition to the wording of `what`.
        `row`: the job, in place of `example` and `state`."""
        if row is not None:
            example, state = row.job.id, row.state
        wording = signature(what) if len(self._groups) < GROUPS else ""
        key = kind, subject, f"{place} {wording}"
        finding = self._groups.get(key)
        if finding is None:
            finding = self._groups[key] = Finding(
                level=level, kind=kind, subject=subject, what=what, advice=typed(advice), states={}, example=example
            )
        finding.jobs += 1
        if state is not None:
            state = self.place or state
            finding.states[state] = finding.states.get(state, 0) + 1

    def sorted(self) -> list[Finding]:
        """Breaks first, then notes; within each level, the findings that concern the most jobs first."""
        return sorted(self._groups.values(), key=lambda finding: (finding.level, -finding.jobs))


class Patch(Struct, kw_only=True):
    """A patch of durable code, `current().patched(name)`.

    old      unfinished jobs with recorded steps and without its marker: they take the old code, or have not come so far
    new      those with its marker
    example  the id of one that may take the old code
    """

    task: str
    name: str
    old: int = 0
    new: int = 0
    example: str | None = None


class Report(Struct, kw_only=True):
    """The result of a check.

    jobs     unfinished jobs that were stored when the check began, system jobs left out
    looked   how many of them it looked at; fewer than `jobs` with `sample`
    outbox   jobs of the app's outbox that it looked at; they are not part of the others
    sampled  it looked only at the oldest and the newest jobs
    patches  those in the source of tasks
    """

    findings: list[Finding]
    jobs: int
    looked: int
    outbox: int = 0
    sampled: bool = False
    patches: list[Patch] = []

    def fails(self, strict: bool = False) -> bool:
        """Whether anything breaks; `strict`: or is worth a note."""
        return any(strict or finding.level == "break" for finding in self.findings)
