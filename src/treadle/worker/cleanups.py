"""Runs jobs over the history of another one: the cleanup of a job that has ended, and single tries of steps."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import StepMismatch, StorageError
from treadle.core.model import ABORTED, ERROR, OURS, Outcome, Record, State
from treadle.durable import Cleanup, Part, PartSteps, Target, child_of, open_children_of
from treadle.execution import Runner
from treadle.execution.job_run import JobRun
from treadle.policy import cleanups, judge
from treadle.policy.parts import is_part, outer_of, step_of
from treadle.tasks.core import TaskCore
from treadle.tasks.versions import fitting, unknown_version
from treadle.worker.durable_backend import READ_AT_ONCE, WorkerDurableBackend
from treadle.worker.parts import WorkerParts
from treadle.worker.payloads import LargeTexts

log = logging.getLogger("treadle")

LOOKS: Final = 6  # at a cleanup job that another worker has just claimed
DEEPEST: Final = 20  # steps with limits inside of one another
PAUSE: Final = 0.05  # s before the second look; doubled each time


class Cleanups:
    """One for each worker."""

    def __init__(self, parts: WorkerParts, runner: Runner, durable: WorkerDurableBackend, texts: LargeTexts) -> None:
        self._storage, self._lease, self._now = parts.storage, parts.config.lease, parts.app.now
        self._troubles = parts.state.troubles
        self._runner, self._durable, self._texts = runner, durable, texts

    async def run(self, task: TaskCore, run: JobRun, rules: judge.Rules) -> Outcome | None:
        """Run such a job once. None: its lease was lost."""
        key, parent = step_of(run.record.job), run.record.job.parent or ""
        outcome = await (self._prepared_try(task, run, key) if key else self._prepared(task, run))
        if outcome is not None:
            if outcome.state is not State.SUCCEEDED:
                self._troubles[run] = None
            return outcome
        chosen = fitting(task, run.record)
        if chosen is None:
            return self._runner.unfit(task, run, rules, unknown_version(task, run.record))
        assert isinstance(run.durable, Part)
        try:
            run_once = self._runner.clean if isinstance(run.durable, Cleanup) else self._runner.run
            outcome = await run_once(chosen, run, rules)
        finally:
            run.subject = None
        if key and not run.durable.is_tried and outcome is not None and outcome.state is State.SUCCEEDED:
            error = StepMismatch(parent, "", "", f"the step {key!r}, which has limits")
            return self._runner.unfit(task, run, rules, error)
        return outcome

    async def _prepared(self, task: TaskCore, run: JobRun) -> Outcome | None:
        """Give the run the history of the job that has ended. Returns the outcome of a cleanup that has nothing to do,
        or cannot begin yet."""
        own = run.record
        if not cleanups.is_cleanup(own.job) or own.job.parent is None:
            return cleanups.nothing_to_do(own)  # another program stored a job with such a policy
        [row] = await self._durable.get([own.job.parent])
        if row is None:
            return judge.ended(own, ERROR, "the job that it cleans up after was deleted")
        if own.job.id != cleanups.cleanup_id(row.job.id, row.reopenings):
            return cleanups.nothing_to_do(own)  # the job was reopened since
        if not row.state.final:
            return judge.awaiting(own, (row.job.id,))
        moment = run.storage_time(self._now())
        rest = cleanups.remaining_lease(own, row, task.lease or self._lease, moment)
        if rest > 0:
            return judge.released(own, rest, reason=cleanups.LEASE)
        ended = await self._whole(run, row)
        if isinstance(ended, Outcome):
            return ended
        rest = await self._end_children(own, ended, task.lease or self._lease, moment)
        if rest > 0:
            return judge.released(own, rest, reason=cleanups.LEASE)
        has_function = own.job.payload != cleanups.CHILDREN_ONLY and task.kind in ("async", "thread")
        if ended.state is State.SUCCEEDED or not has_function:
            return cleanups.nothing_to_do(own)
        run.record, run.limits = cleanups.merged(own, ended), own.job.limits
        run.durable = Cleanup(run, self._durable, self._durable.codec(task.name), ended)
        return None

    async def _prepared_try(self, task: TaskCore, run: JobRun, key: str) -> Outcome | None:
        """Give the run the history of the job that takes the step. Returns the outcome of a try that need not be made,
        or cannot be made yet."""
        own = run.record
        rows, above = [own], own.job.parent
        while above is not None and len(rows) <= DEEPEST:
            [row] = await self._durable.get([above])
            whole = None if row is None else await self._whole(run, row)
            if isinstance(whole, Outcome):
                return whole
            if whole is None:
                return cleanups.nothing_to_do(own)
            rows.append(whole)
            above = whole.job.parent if is_part(whole.job) else None
        if above is not None:
            return judge.ended(own, ABORTED, f"at most {DEEPEST} steps with limits may be inside of one another")
        if (entry := dict(own.checkpoints).get(key)) is not None:
            return judge.succeeded(own, entry)  # of a run that did not end with it
        if len(rows) == 1 or rows[1].state.final or (child := child_of(rows[1], key)) not in (None, own.id):
            return cleanups.nothing_to_do(own)
        if child is None:  # the run that stored this job has not stored its entry yet, or never will
            waits = rows[1].state is State.RUNNING
            return judge.released(own, defaults.POLL) if waits else cleanups.nothing_to_do(own)
        row = job = rows.pop()
        for part in reversed(rows[1:]):
            row = cleanups.merged(part, row)
        limits = {name for around in rows for name, _ in around.job.limits}
        only = Target(key, outer_of(own.job), {name for name, _ in row.checkpoints}, limits)
        run.record, run.limits = cleanups.merged(own, row), own.job.limits
        codec = self._durable.codec(task.name)
        if rows[-1] is not own and cleanups.is_cleanup(rows[-1].job):
            run.durable = Cleanup(run, self._durable, codec, job, only)
        else:
            run.record = replace(run.record, deadline_at=job.deadline_at)  # of the children of the step
            steps = PartSteps(run, self._durable, only.recorded, only)
            run.durable = Part(run, self._durable, codec, job.id, steps)
        # `current().version` is that of the job: with a higher one, the next run of the job would be refused.
        run.subject = replace(job, version=job.version - own.version)
        return None

    async def _whole(self, run: JobRun, row: Record) -> Record | Outcome:
        """The row with its large texts, or the outcome of a job that cannot continue without them."""
        own, moment = run.record, run.storage_time(self._now())
        whole = JobRun(row, run.worker, run.noted)
        closed = await self._texts.made_whole(whole, moment)
        if closed is not None and closed.state is State.READY:
            return judge.released(own, closed.delay)
        if closed is not None:
            return judge.ended(own, closed.reason or ERROR, closed.error or "")
        return whole.record

    async def _end_children(self, own: Record, ended: Record, lease: float, now: float) -> float:
        """Cancel the children that the job has called, and that have not ended; of a job that was cancelled alone, only
        the tries of its steps. Returns the seconds for which a step of the job may still run in one of them."""
        children, rest = open_children_of(ended), 0.0
        for start in range(0, len(children), READ_AT_ONCE):
            some = children[start : start + READ_AT_ONCE]
            if cleanups.ends_alone(ended):
                some = [row.job.id for row in await self._durable.get(some) if row is not None and is_part(row.job)]
            await self._durable.cancel(ended, some)
            for row in await self._durable.get(some):
                if row is not None and is_part(row.job):
                    mark = cleanups.free_mark(row.job.id)
                    rest = max(rest, cleanups.remaining_lease(own, row, lease, now, mark))
        return rest

    async def free(self, run: JobRun) -> None:
        """The run has ended without its job: if that was cancelled, its cleanup need not wait for the lease to pass. It
        gets the steps of this run that could not be stored any more, as their effects have happened. If the run was for
        a try of a step, the job is that of the step."""
        job, mark, steps = run.record.job.id, cleanups.FREE, dict[str, str]()
        if isinstance(run.durable, Part) and run.durable.steps.only is not None:
            job, mark = run.durable.job, cleanups.free_mark(job)
        elif run.durable is not None:
            unsaved = run.durable.checkpoints.unsaved
            steps = {name: text for name, text in unsaved.items() if not name.startswith(OURS)}
        try:
            for look in range(LOOKS):
                [row] = await self._storage.get([cleanups.cleanup_id(job, run.record.reopenings)])
                if row is None or row.state is State.WAITING or row.state.final:
                    return
                if row.state is State.READY and await self._freed(row, mark, steps):
                    return
                await asyncio.sleep(PAUSE * 2**look)
        except StorageError as error:
            log.info("the cleanup of job %s begins when its lease is over: %s", job, error)

    async def _freed(self, row: Record, mark: str, steps: dict[str, str]) -> bool:
        if cleanups.has_steps(row.checkpoints):
            return True  # the lease was over, and the cleanup has begun
        free = (mark, msgspec.json.encode(tuple(steps)).decode())
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
