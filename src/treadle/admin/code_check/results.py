"""Checks the stored results that unfinished jobs will still read: as their first argument, or in a reducer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.admin.code_check.findings import Findings
from treadle.core.errors import BadResult
from treadle.core.model import Record, State
from treadle.policy.judge import upstreams
from treadle.policy.retry import read_policy
from treadle.serialization import first_misfit
from treadle.tasks.core import TaskCore
from treadle.tasks.reducers import DEFAULT
from treadle.workflow import contributions, decode_of
from treadle.workflow.plan import plan_of

AS_TEXT = ("last", "first", "list")  # reducers that combine stored texts if no task returned the flow
ADVICE = "accept both forms until these jobs have ended, or give the changed function a new task name"


class ResultChecks:
    """The checks that need the rows of the jobs that a job waits for."""

    def __init__(self, tasks: Mapping[str, TaskCore], findings: Findings) -> None:
        self._tasks, self._findings = tasks, findings

    def needs(self, row: Record) -> Sequence[str]:
        """The ids of the rows whose results this row will read."""
        if row.function_done:
            return row.after if self._decodes(row) else ()
        if row.job.retry is None or not read_policy(row.job.retry).pass_result or row.job.task not in self._tasks:
            return ()
        return upstreams(row)

    def _decodes(self, row: Record) -> bool:
        """Whether the ending of this parent decodes the results of its children."""
        plan, task = plan_of(row), self._tasks.get(row.job.task)
        if plan.mark is not None or plan.guard or plan.locked:
            return False
        name = plan.reduce or (task.reduce if task is not None else None) or DEFAULT
        return task is not None or name not in AS_TEXT

    def look(self, row: Record, rows: Mapping[str, Record]) -> None:
        """Check a row. `rows`: the rows of `needs` that are stored."""
        ups = [rows[id] for id in self.needs(row) if id in rows]
        if row.function_done:
            for part in contributions([up for up in ups if up.state.final]):
                self._value(row, part)
            return
        how = read_policy(row.job.retry).pass_result
        done = [up for up in ups if up.state is State.SUCCEEDED]
        values = [value for up in done if (value := self._value(row, up)) is not None]
        if len(values) != len(done) or not all(up.state.final for up in ups):
            return
        first = [value for (value,) in values] if how == "list" else values[0][0] if values else None
        task = self._tasks[row.job.task]
        error = first_misfit(task.signature, first) if values else None
        if error is not None:
            self._findings.add(
                "result",
                task.name,
                f"the result of {done[0].job.task} does not fit its first parameter {error.parameter!r}: "
                f"{error.problem}",
                ADVICE,
                place="first",
                row=row,
            )

    def _value(self, row: Record, up: Record) -> tuple[object] | None:
        """The result of a job as this code decodes it; None if it cannot."""
        try:
            return (decode_of(up, self._tasks, up.result or "null"),)
        except BadResult as error:
            self._findings.add(
                "result",
                up.job.task,
                f"a stored result that {row.job.task} will read does not fit its return annotation any more: {error}",
                ADVICE,
                place=row.job.task,
                row=up,
            )
            return None
