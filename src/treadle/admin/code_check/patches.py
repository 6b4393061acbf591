"""The patches of durable code (`current().patched`): which of them stored jobs still need."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.admin.code_check.findings import Patch
from treadle.core.model import OURS, Record
from treadle.durable import PATCHED


class PatchChecks:
    """Counts the unfinished jobs that take the new code of a patch, and those that may take its old code."""

    def __init__(self) -> None:
        self._patches: dict[tuple[str, str], Patch] = {}

    def add(self, task: str, names: Iterable[str]) -> None:
        """Note the patches in the source of a task."""
        for name in names:
            self._patches.setdefault((task, name), Patch(task=task, name=name))

    def look(self, row: Record, names: Iterable[str]) -> None:
        """Count a job with checkpoints."""
        keys = {key for key, _ in row.checkpoints if not key.startswith(OURS)}
        for name in names if keys else ():
            patch = self._patches[row.job.task, name]
            if f"{PATCHED}{name}" in keys:
                patch.new += 1
            else:
                patch.old += 1
                patch.example = patch.example or row.id

    def sorted(self) -> list[Patch]:
        """By task and name."""
        return [self._patches[key] for key in sorted(self._patches)]
