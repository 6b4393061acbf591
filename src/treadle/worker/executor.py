"""Starts claimed jobs, runs their functions, and leaves each outcome for the next request to settle."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.concurrency.uncut import shielded
from treadle.core import defaults, interrupts
from treadle.core.errors import ARGUMENTS, StepMismatch, UnknownTask, UnknownVersion
from treadle.core.events import was_lost
from treadle.core.model import BEGUN_WITH, DECLINED, EXPIRED, Outcome, Pairs, Record, State
from treadle.core.stored_text import has_forms
from treadle.durable import Durable, after_undos
from treadle.execution import Runner, SystemTask
from treadle.execution.job_run import JobRun
from treadle.policy import attempts, guilt, judge
from treadle.policy.cleanups import has_steps, with_cleanup
from treadle.policy.error_text import text_of
from treadle.policy.misfits import is_misfit
from treadle.policy.retry import DEFAULT
from treadle.policy.unread import cleared
from treadle.tasks.core import BatchCore, TaskCore
from treadle.tasks.versions import fitting, unknown_version
from treadle.worker import commit
from treadle.worker.cleanups import Cleanups
from treadle.worker.durable_backend import WorkerDurableBackend
from treadle.worker.job_events import event_of, tell
from treadle.worker.parts import WorkerParts
from treadle.worker.payloads import LargeTexts
from treadle.worker.running_job import RunningJob
from treadle.worker.settler import Settler
from treadle.worker.timeouts import Timeouts
from treadle.worker.trials import Trials
from treadle.workflow import WorkflowFinisher, failure
from treadle.workflow.streams import streams_of

log = logging.getLogger("treadle")

_NO_TASK: Any = None
CONCLUDED = frozenset((ARGUMENTS, EXPIRED))  # reasons of outcomes that need a look although no step was taken
NO_RULES = judge.Rules(DEFAULT, None, 0)


class Executor:
    """One for each worker. The dispatcher takes a slot for each job before it calls this; the end of the run releases
    it."""

    def __init__(self, parts: WorkerParts, settler: Settler, trials: Trials) -> None:
        app = parts.app
        self._state, self.timeouts, self._storage = parts.state, Timeouts(parts.state.loop), parts.storage
        self._resource_use = parts.state.resource_use
        self._accept, self._poll = parts.config.accept, parts.config.poll
        self._tasks, self._system_tasks, self._emitter = app.tasks, app.system_tasks, app.emitter
        self._results, self._now, self._lease = app.results, app.now, parts.config.lease
        self._runner = Runner(app, parts.pools, parts.batches, parts.state.troubles)
        self._finisher = WorkflowFinisher(parts.storage, app.tasks, app.reducers, app.sizes.result)
        self._durable, self._settler = WorkerDurableBackend(parts), settler
        self._lose, self._trials = parts.heartbeat.lose, trials
        self._site = parts.site
        self._rules: dict[str, judge.Rules] = {}
        self._logs = parts.run_logs
        self._run_reports, self._misfits = parts.run_reports, parts.misfits
        self._texts = LargeTexts(parts.config.name, parts.storage, app.random)
        self._cleanups = Cleanups(parts, self._runner, self._durable, self._texts)
        self._metrics, self._to_time = parts.metrics, 0  # jobs to time of those that are started next

    def start_all(self, records: Sequence[Record], sent: float, came: float | None = None) -> None:
        """Run claimed jobs. A job that cannot be started does not hold up the others.

        sent  when the claim was sent, by this process's clock
        came  when its answer came, by the same clock; None: now
        """
        came = self._now() if came is None else came
        sent = min(came, max(sent, came - self._lease))  # older claims have lost their lease
        self._state.started += len(records)
        if self._metrics is not None and records:
            self._to_time = self._metrics.starts(records)
        for record in records:
            try:
                if self._state.stopping or self._still_runs(record):
                    self._settle_unstarted(record, judge.released(record))
                elif has_forms(record) and (closed := self._closed(record)) is not None:
                    self._settle_unstarted(record, closed)
                else:
                    self.start(record, came, sent)
            except Exception:
                log.exception("could not start %s %s; its lease will expire", record.job.task, record.job.id)
                self._state.slots.release()

    def _still_runs(self, record: Record) -> bool:
        """Whether another run of this job has not ended: this claim was sent before that run began, or it would have
        left the job out. The earlier of the two has lost its lease, so it is stopped."""
        run = self._state.running.get(record.job.id)
        if run is not None and run.record.version < record.version:
            self._lose(run)
        return run is not None

    def _closed(self, record: Record) -> Outcome | None:
        """The release of a job with a text that this worker cannot read. It costs no asyncio task, because senders may
        store thousands of such jobs."""
        if record.function_done:
            return None
        outcome = self._texts.closed(record, record.updated_at)
        return outcome if outcome is not None and outcome.state is State.READY else None

    def start(self, record: Record, came: float, sent: float) -> None:
        """Run one claimed job. See `JobRun` for the times."""
        state, job = self._state, record.job
        lost: Pairs = ()
        if record.lost and was_lost(record):
            if not self._trials.is_expected(record):
                self._settler.reaped(record)
            lost = attempts.losses(record)
        task = self._tasks.get(job.task) or self._system_tasks.get(job.task)
        if record.function_done:
            max_lost = defaults.MAX_LOST if task is None else self._rules_for(task, record).max_lost
            job_run = JobRun(record, state.name, state.note_changed, carried=lost)
            run = RunningJob(record, _NO_TASK, job_run, NO_RULES, job.lease or 0.0)
            state.begin(run, self._end(run, max_lost))
            return
        if task is None:
            # The claim named this task, so the app has removed it since: release the job, without counting an attempt.
            log.error("%s", UnknownTask(job.task, tuple(self._tasks)))
            self._settle_unstarted(record, judge.released(record, 5.0))
            return
        rules = self._rules.get(job.task) if job.retry is None else None
        if rules is None:
            rules = self._rules_for(task, record)
        here = self._results, self._durable, self._site
        job_run = JobRun(record, state.name, state.note_changed, *here, lost, came=came, sent=sent)
        run = RunningJob(record, task, job_run, rules, job.lease or task.lease or 0.0)
        if self._logs is not None:
            self._logs.begin(run)
        if rules.timeout is not None and not (record.lost and self._trials.is_due(run)):
            self.timeouts.add(rules.timeout, run, "timeout")
        if record.deadline_at is not None and record.started_at is not None:
            self.timeouts.add(record.deadline_at - job_run.storage_time(self._now()), run, "deadline")
        if isinstance(task, BatchCore):
            run.in_batch = True
            state.slots.release()
        elif self._resource_use is not None and isinstance(task, TaskCore) and task.needs is not None:
            run.uses = task.needs.uses
            self._resource_use.take(run.uses)
        if self._to_time:
            self._to_time -= 1
            state.begin(run, self._timed(run))
        else:
            state.begin(run, self._work(run))

    async def _timed(self, run: RunningJob) -> None:
        """Run a job that is part of the sample of metrics."""
        outcome = await self._work(run)
        if self._metrics is not None:
            self._metrics.timed(run, outcome)

    async def _work(self, run: RunningJob) -> Outcome | None:
        outcome: Outcome | None = None
        task, job_run = run.task, run.job_run
        run.begun = True
        try:
            if run.cancelled:
                raise asyncio.CancelledError
            if run.record.lost:
                outcome = self._lost_too_often(run) or await self._alone(run)
            if isinstance(task, SystemTask):
                outcome = await self._runner.run_system_task(task, job_run, run.rules)
            elif outcome is None and self._accept is not None and not await self._accepts(run):
                self._state.troubles[job_run] = None
                outcome = judge.released(run.record, self._poll, job_run.carried, reason=DECLINED + self._state.name)
            elif outcome is None:
                if not self._emitter.silent and self._emitter.wants("started"):
                    self._emitter.emit(event_of("started", run, self._state.name))
                outcome = await self._called(run, task)
        except (asyncio.CancelledError, Exception) as error:
            outcome = self._broken_off(run, error)
        finally:
            if job_run.transaction is not None:
                outcome = await shielded(self._end_jointly(run, outcome))
            elif self._run_reports is not None and run.called:
                self._run_reports.report(run, outcome)
            if run.noted:
                self._trials.end(run, outcome)
            else:
                self._state.end(run, outcome)
        return outcome

    async def _alone(self, run: RunningJob) -> Outcome | None:
        """If this job may have killed its worker, wait until nothing else runs here. Returns the outcome of a job that
        waits too long for that, and None for one that may run."""
        if not self._trials.is_due(run):
            return None
        outcome = await self._trials.turn(run)
        if outcome is None and run.rules.timeout is not None:
            self.timeouts.add(run.rules.timeout, run, "timeout")
        return outcome

    async def _called(self, run: RunningJob, task: TaskCore) -> Outcome | None:
        """Read the large texts of the job, and run its function."""
        job_run, run.called = run.job_run, True
        if has_forms(job_run.record):
            closed = await self._texts.made_whole(job_run, job_run.storage_time(self._now()))
            if closed is not None:
                self._state.troubles[job_run], run.called = None, closed.state is State.FAILED
                return closed
        elif job_run.record.checkpoints:
            job_run.carried = (*job_run.carried, *cleared(job_run.record))
        if job_run.record.checkpoints and (anew := after_undos(job_run.record)) is not None:
            self._state.troubles[job_run] = None
            return anew
        if not run.rules.is_part and (job_run.record.checkpoints or task.is_versioned):
            chosen = fitting(task, job_run.record)
            if chosen is None:
                error = unknown_version(task, job_run.record)
                return await self._concluded(job_run, self._runner.unfit(task, job_run, run.rules, error))
            task = run.task = chosen
            job_run.version = (BEGUN_WITH, str(task.version)) if task.is_versioned else None
        if task.kind == "async":
            job_run.place = run.handle or asyncio.current_task()
        if job_run.record.checkpoints and not run.rules.is_part and streams_of(job_run.record.checkpoints):
            # The attempt that succeeds voids what earlier ones have written, also if it writes nothing.
            job_run.durable = Durable(job_run, self._durable, self._durable.codec(task.name))
        runner = self._cleanups if run.rules.is_part else self._runner
        outcome = await runner.run(task, job_run, run.rules)
        if outcome is not None and (job_run.durable or job_run.log is not None or outcome.reason in CONCLUDED):
            outcome = await self._concluded(job_run, outcome)
        elif outcome is None and job_run.durable is not None:
            await job_run.durable.lost()
            await self._cleanups.free(job_run)
        return outcome

    async def _concluded(self, job_run: JobRun, outcome: Outcome) -> Outcome:
        """The outcome with the checkpoints of this run: its steps, and its log lines. A job whose arguments this code
        cannot read may be left to other workers."""
        by_code = isinstance(self._state.troubles.get(job_run), StepMismatch | UnknownVersion)
        if is_misfit(outcome) or (by_code and outcome.state is State.FAILED):
            moment = job_run.storage_time(self._now())
            settled = await self._misfits.settled(job_run, outcome, moment, by_code)
            if settled is not outcome:
                self._state.troubles[job_run] = None
                return settled if job_run.durable is None else await job_run.durable.concluded(settled)
        if job_run.durable is not None:
            outcome = await job_run.durable.concluded(outcome)
        else:
            outcome = with_cleanup(job_run.record, outcome, has_steps(job_run.record.checkpoints))
        return outcome if self._logs is None else await self._logs.kept(job_run, outcome)

    def _broken_off(self, run: RunningJob, error: BaseException) -> Outcome | None:
        """The outcome of a run that was cancelled before its function was called, or that failed outside it."""
        if isinstance(error, asyncio.CancelledError):
            return None if run.job_run.why == "lost" else judge.released(run.record)
        # A defect of Treadle, not of the job. It counts as an attempt, so that the retries end.
        log.error("running %s %s failed outside the task", run.task.name, run.record.job.id, exc_info=error)
        self._state.troubles[run.job_run] = error
        run.called, moment = not isinstance(run.task, SystemTask), run.job_run.storage_time(self._now())
        return run.job_run.with_attempt(judge.failed(run.record, run.rules, error, None, moment, 1.0), moment)

    def _lost_too_often(self, run: RunningJob) -> Outcome | None:
        outcome = judge.lost_too_often(run.record, run.rules)
        if outcome is not None:
            self._state.troubles[run.job_run] = None
            outcome = with_cleanup(run.record, outcome, has_steps(run.record.checkpoints))
            outcome, run.called = run.job_run.with_carried(outcome), True
        elif self._run_reports is not None and was_lost(run.record) and not isinstance(run.task, SystemTask):
            self._run_reports.reaped(run)
        return outcome

    async def _end_jointly(self, run: RunningJob, outcome: Outcome | None) -> Outcome | None:
        """Commit the transaction of a run together with its outcome. Returns the outcome that is left to settle."""
        try:
            if run.noted and outcome is not None:
                outcome = guilt.without_kind(run.record, outcome)
            remaining = await commit.end(run, outcome, self._storage, self._state.troubles)
        except commit.AlreadyCommitted:
            assert outcome is not None
            if self._run_reports is not None:
                self._run_reports.report(run, outcome)
            self._settler.committed(run, outcome)
            return None
        if remaining is not None and remaining is not outcome:
            remaining = run.job_run.with_attempt(remaining, run.job_run.storage_time(self._now()))
        if self._run_reports is not None:
            self._run_reports.report(run, remaining)
        return remaining

    async def _end(self, run: RunningJob, max_lost: int) -> None:
        """End a job whose function is done and that has waited for its children."""
        outcome: Outcome | None = None
        raised: list[Exception] = []
        record, run.begun = run.record, True
        try:
            if run.cancelled:
                raise asyncio.CancelledError
            if record.lost and (outcome := await self._alone(run)) is not None:
                return
            outcome = run.job_run.with_carried(await self._finisher.end(record, max_lost, raised.append))
            if outcome.state is not State.SUCCEEDED:
                self._state.troubles[run.job_run] = raised[0] if raised else None
        except asyncio.CancelledError:
            outcome = None if run.job_run.why == "lost" else judge.released(record)
        except Exception as error:  # a defect of Treadle, or unreadable rows: do not retry for ever
            log.exception("ending %s %s failed", record.job.task, record.job.id)
            outcome = failure(record, text_of(error))
            self._state.troubles[run.job_run] = error
        finally:
            if self._run_reports is not None:
                self._run_reports.ending(run, outcome)
            self._trials.end(run, outcome)

    async def _accepts(self, run: RunningJob) -> bool:
        assert self._accept is not None
        try:
            answer = self._accept(run.record)
            return bool(await answer if inspect.isawaitable(answer) else answer)
        except (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as error:
            interrupts.pass_on(error)
            # The job is not the cause: release it without counting an attempt, like a declined job.
            log.exception("accept failed for %s %s; releasing the job", run.task.name, run.record.job.id)
            tell(self._emitter, self._state.name, "worker.error", error)
            return False

    def _rules_for(self, task: TaskCore | SystemTask, record: Record) -> judge.Rules:
        if record.job.retry is not None:
            return judge.rules_for(record, task.retry, task.timeout, task.max_lost)
        known = self._rules.get(task.name)
        if known is None:
            known = self._rules[task.name] = judge.rules_for(record, task.retry, task.timeout, task.max_lost)
        return known

    def _settle_unstarted(self, record: Record, outcome: Outcome) -> None:
        """Settle a claimed job without running it."""
        if record.lost and was_lost(record):
            outcome = replace(outcome, checkpoints=(*outcome.checkpoints, *attempts.losses(record)))
        run = RunningJob(record, _NO_TASK, JobRun(record, self._state.name, lambda: None), NO_RULES, 0.0)
        run.ended = True
        self._state.slots.release()
        self._state.settle_again(run, outcome)
