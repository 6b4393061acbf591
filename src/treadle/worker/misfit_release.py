"""Leaves jobs whose arguments this code cannot read to workers with another version of their task.

A job that it releases keeps its queue position. This worker leaves it out of its claims for AGAIN seconds, so that
the others get it; then it claims it once more, to see whether there still are others. With MOST such jobs it leaves out
their task: a claim names each job, and a job that no claim can leave out would come back at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from treadle.core.clock import monotonic
from treadle.core.errors import StorageError
from treadle.core.model import Outcome, Presence, Record
from treadle.execution.job_run import JobRun
from treadle.policy import misfits
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore
from treadle.tasks.versions import code_of

AGAIN: Final = 5.0  # s
FRESH: Final = 2.0  # s for which a list of workers shows that there is another version
SOON: Final = 0.1  # s for which it remembers that no worker has one
MOST: Final = 500  # jobs that are left out of claims at once: their ids are part of each claim

log = logging.getLogger("treadle")


class MisfitRelease:
    """One for each worker. `longest`: s that a job may wait for another version; 0: it fails at once."""

    def __init__(self, worker: str, tasks: Mapping[str, TaskCore], storage: Storage, longest: float) -> None:
        self._worker, self._tasks, self._storage, self._longest = worker, tasks, storage, longest
        self._left: dict[str, float] = {}  # id -> when it is claimed here again
        self._left_tasks: dict[str, float] = {}  # the same for all jobs of a task
        self._versions: dict[str, str] = {}
        self._workers: Sequence[Presence] = ()
        self._read_at = float("-inf")

    def versions(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """The version of each task's signature, which this worker stores with its presence; (): it lets no job wait."""
        return tuple(map(self._version, tasks)) if self._longest else ()

    def _version(self, name: str) -> str:
        if name not in self._versions:
            task = self._tasks.get(name)
            self._versions[name] = "" if task is None else code_of(task)
        return self._versions[name]

    def left_out(self) -> tuple[str, ...]:
        """The jobs that this worker does not claim now."""
        if not self._left:
            return ()
        now = monotonic()
        self._left = {id: until for id, until in self._left.items() if until > now}
        return tuple(self._left)

    def left_tasks(self) -> tuple[str, ...]:
        """The tasks that this worker does not claim now."""
        if not self._left_tasks:
            return ()
        now = monotonic()
        self._left_tasks = {task: until for task, until in self._left_tasks.items() if until > now}
        return tuple(self._left_tasks)

    async def settled(self, run: JobRun, outcome: Outcome, moment: float, by_code: bool = False) -> Outcome:
        """The outcome of a run that could not read its arguments: as it is, or the job released.

        moment   now, by the storage's clock
        by_code  it could read them, but the job began with other code
        """
        record = run.record
        until = misfits.waits_until(record) or moment + self._longest
        if not self._longest or moment >= until or not await self._is_for_others(record, by_code):
            return outcome
        again = monotonic() + AGAIN
        if len(self._left) < MOST:
            self._left[record.job.id] = again
        else:
            self._left_tasks[record.job.task] = again
        why = "did not begin it" if by_code else "cannot read its arguments"
        text = "%s %s: this code %s, but another worker has other code: released"
        log.warning(text, record.job.task, record.job.id, why)
        return misfits.left_to_others(record, outcome, self._worker, until, run.carried)

    async def _is_for_others(self, record: Record, by_code: bool) -> bool:
        """Whether a live worker that claims from its queue has another version of its task, or may have. Before it says
        no, the workers are read again: one may just have started. While the storage does not answer, nothing is
        decided: the job waits until its time is over."""
        age = monotonic() - self._read_at
        if age < FRESH and self._knows_another(record, by_code):
            return True
        if age > SOON:
            try:
                self._workers, self._read_at = (await self._storage.glance(1)).workers, monotonic()
            except StorageError:
                return True
        return self._knows_another(record, by_code)

    def _knows_another(self, record: Record, by_code: bool) -> bool:
        task, queue = record.job.task, record.job.queue
        own = self._version(task)
        return any(
            task in worker.tasks
            and queue in worker.queues
            and misfits.differ(misfits.version_at(worker, task), own, by_code)
            for worker in self._workers
            if worker.worker != self._worker
        )
