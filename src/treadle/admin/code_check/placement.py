"""Compares what the tasks of the code require and use with the labels and resources of the running workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.admin.code_check.findings import Findings
from treadle.core.model import Presence, Record
from treadle.core.placement_words import never
from treadle.tasks.core import TaskCore


class PlacementChecks:
    """Adds notes: the workers of the deployment may have other labels. Without running workers there is nothing to
    compare."""

    def __init__(self, tasks: Mapping[str, TaskCore], workers: Sequence[Presence], findings: Findings) -> None:
        self._findings = findings
        self._lacking: dict[str, str] = {}
        for name, task in tasks.items():
            if workers and task.needs is not None and (lacks := never(task.needs, workers)) is not None:
                self._lacking[name] = lacks

    def look(self, row: Record) -> None:
        """Check a row of a user's task."""
        lacks = self._lacking.get(row.job.task)
        if lacks is not None and not row.function_done:
            self._findings.add(
                "worker",
                row.job.task,
                lacks,
                "start a worker with these labels and resources, or change what @app.task says",
                level="note",
                example=row.job.id,
                state=row.state,
            )
