"""`current().patched(name)`: whether a run takes the changed code, decided once for each job.

A run that has recorded steps after this point took them with the old code, and keeps to it. Any other run takes the new
code, and the history gets a marker, which is stored before the function of the next step runs. A marker has no place in
the order of the steps, so code without it still reads the history.
"""

from __future__ import annotations

from typing import Final

from treadle.core.errors import BadStep
from treadle.durable.backend import IN_BATCH
from treadle.durable.checkpoints import Checkpoint, StepRequest, check_name
from treadle.durable.step_taker import StepTaker

PATCHED: Final = "patched:"  # prefix of the keys of markers
APART: Final = "&&"  # ends the `after` of a marker, which no step follows


class Patches:
    """The patches of one run."""

    def __init__(self, durable: StepTaker) -> None:
        self._durable = durable
        self._old: set[str] = set()  # patches before which this job has passed their point

    def has(self, name: str) -> bool:
        """Whether the new code runs. Raises BadStep, and TooLarge."""
        durable, checkpoints = self._durable, self._durable.checkpoints
        key = f"{PATCHED}{name}"
        if durable.run.place is IN_BATCH:
            raise BadStep(key, "a batch runs one code for all its jobs; put the changed code in a task of a new name")
        if key in checkpoints.entries:
            return True
        if name in self._old:
            return False
        check_name(name)
        branch = checkpoints.here()
        if checkpoints.following(branch.last) is not None:
            self._old.add(name)
            return False
        after = branch.last.rstrip("&") + APART
        checkpoints.keep(StepRequest(branch, key, branch.taken, after, None), Checkpoint(after))
        checkpoints.caught.add(key)
        return True
