"""Runs cleanup jobs: the function of a job that has ended, over the history of that job."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from treadle.core.errors import StorageError
from treadle.core.model import ERROR, OURS, Outcome, Record, State
from treadle.durable import Cleanup, open_children_of
from treadle.execution import Runner
from treadle.execution.job_run import JobRun
from treadle.policy import cleanups, judge
from treadle.tasks.core import TaskCore
from treadle.tasks.versions import fitting, unknown_version
from treadle.worker.durable_backend import READ_AT_ONCE, WorkerDurableBackend
from treadle.worker.parts import WorkerParts
from treadle.worker.payloads import LargeTexts

log = logging.getLogger("treadle")

LOOKS: Final = 6  # at a cleanup job that another worker has just claimed
PAUSE: Final = 0.05  # s before the second read; doubled each time


class Cleanups:
    """One for each worker."""

    def __init__(self, parts: WorkerParts, runner: Runner, durable: WorkerDurableBackend, texts: LargeTexts) -> None:
        self._storage, self._lease, self._now = parts.storage, parts.config.lease, parts.app.now
        self._troubles = parts.state.troubles
        self._runner, self._durable, self._texts = runner, durable, texts

    async def run(self, task: TaskCore, run: JobRun, rules: judge.Rules) -> Outcome | None:
        """Run a cleanup job once. None: its lease was lost."""
        outcome = await self._prepared(task, run)
        if outcome is not None:
            if outcome.state is not State.SUCCEEDED:
                self._troubles[run] = None
            return outcome
        chosen = fitting(task, run.record)
        if chosen is None:
            return self._runner.unfit(task, run, rules, unknown_version(task, run.record))
        return await self._runner.clean(chosen, run, rules)

    async def _prepared(self, task: TaskCore, run: JobRun) -> Outcome | None:
        """Give the run the history of the job that has ended. Returns the outcome of a cleanup that has nothing to do,
        or cannot begin yet."""
        own = run.record
        if not cleanups.is_cleanup(own.job) or own.job.parent is None:
            return cleanups.nothing_to_do(own)  # another program stored a job with such a policy
        [ended] = await self._durable.get([own.job.parent])
        if ended is None:
            return judge.ended(own, ERROR, "the job that it cleans up after was deleted")
        if own.job.id != cleanups.cleanup_id(ended.job.id, ended.reopenings):
            return cleanups.nothing_to_do(own)  # the job was reopened since
        if not ended.state.final:
            return judge.awaiting(own, (ended.job.id,))
        moment = run.storage_time(self._now())
        rest = cleanups.remaining_lease(own, ended, task.lease or self._lease, moment)
        if rest > 0:
            return judge.released(own, rest, reason=cleanups.LEASE)
        whole = JobRun(ended, run.worker, run.noted)
        closed = await self._texts.made_whole(whole, moment)
        if closed is not None and closed.state is State.READY:
            return judge.released(own, closed.delay)
        if closed is not None:
            return judge.ended(own, closed.reason or ERROR, closed.error or "")
        if not cleanups.ends_alone(ended):
            await self._end_children(whole.record)
        has_function = own.job.payload != cleanups.CHILDREN_ONLY and task.kind in ("async", "thread")
        if ended.state is State.SUCCEEDED or not has_function:
            return cleanups.nothing_to_do(own)
        run.record = cleanups.merged(own, whole.record)
        run.durable = Cleanup(run, self._durable, self._durable.codec(task.name), whole.record)
        return None

    async def _end_children(self, ended: Record) -> None:
        """Cancel the children that the job has called, and that have not ended."""
        children = open_children_of(ended)
        for start in range(0, len(children), READ_AT_ONCE):
            await self._durable.cancel(ended, children[start : start + READ_AT_ONCE])

    async def free(self, run: JobRun) -> None:
        """The run has ended without its job: if that was cancelled, its cleanup need not wait for the lease to pass. It
        gets the steps of this run that could not be stored any more, as their effects have happened."""
        steps = {} if run.durable is None else run.durable.checkpoints.unsaved
        steps = {name: text for name, text in steps.items() if not name.startswith(OURS)}
        try:
            for look in range(LOOKS):
                [row] = await self._storage.get([cleanups.cleanup_id(run.record.job.id, run.record.reopenings)])
                if row is None or row.state is State.WAITING or row.state.final:
                    return
                if row.state is State.READY and await self._freed(row, steps):
                    return
                await asyncio.sleep(PAUSE * 2**look)
        except StorageError as error:
            log.info("the cleanup of job %s begins when its lease is over: %s", run.record.job.id, error)

    async def _freed(self, row: Record, steps: dict[str, str]) -> bool:
        if cleanups.has_steps(row.checkpoints):
            return True  # the lease was over, and the cleanup has begun
        free = (cleanups.FREE, msgspec.json.encode(tuple(steps)).decode())
        outcome = Outcome(
            id=row.job.id,
            version=row.version,
            state=State.READY,
            attempt=row.attempt,
            error=row.error,
            checkpoints=(*steps.items(), free),
        )
        [answer] = await self._storage.settle([outcome])
        return answer.status == "applied"
