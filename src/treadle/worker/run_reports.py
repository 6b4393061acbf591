"""Calls `Middleware.judged` at the end of each run of this worker."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence

from treadle.core.errors import JobExpired, JobFailed
from treadle.core.model import EXPIRED, Outcome, State
from treadle.execution import Ending, RunOutcome, middleware
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun, enter
from treadle.worker.job_events import name_of, run_outcome
from treadle.worker.lost_job_reports import LostReporter
from treadle.worker.running_job import RunningJob
from treadle.workflow.plan import FLOW, plan_of


class RunReporter:
    """One for each worker whose app has middleware that overrides `judged`.

    troubles  the runs that did not succeed, with the exceptions of their functions
    """

    def __init__(
        self,
        layers: Sequence[middleware.Middleware],
        troubles: dict[JobRun, BaseException | None],
        lost: LostReporter,
        now: Callable[[], float],
    ) -> None:
        self._layers, self._troubles, self._lost, self._now = layers, troubles, lost, now

    def report(self, run: RunningJob, outcome: Outcome | None) -> None:
        """Report a run that has ended. None: the job does not belong to this worker any more."""
        job_run = run.job_run
        if outcome is None:
            self._report_lost(run)
            return
        error, record = self._troubles.get(job_run), run.record
        name: str = name_of(record, outcome)
        if name == "deferred" and error is None and job_run.why == "stop" and job_run.suspended_as is None:
            name = "released"
        if outcome.state is State.FAILED and error is None:
            kind = JobExpired if outcome.reason == EXPIRED else JobFailed
            error = kind(record.job.id, record.job.task, outcome.reason, outcome.error)
        self._call(job_run, self._outcome(run, name, outcome), error)

    def ending(self, run: RunningJob, outcome: Outcome | None) -> None:
        """Report the ending of a job that has waited for its children. Rows that Treadle has added are left out."""
        if outcome is None or not outcome.state.final:
            return
        if run.record.job.task == FLOW and ((plan := plan_of(run.record)).mark is not None or plan.guard):
            return
        self.report(run, outcome)

    def reaped(self, run: RunningJob) -> None:
        """Report the run of a dead worker, whose job this worker is about to run."""
        self._call(run.job_run, RunOutcome(name="reaped", reason=run.record.reason), None)

    def refused(self, run: RunningJob, outcome: Outcome, error: BaseException) -> None:
        """Report an outcome that replaces the one of this run, which the storage has refused."""
        refusal = self._outcome(run, name_of(run.record, outcome), outcome)
        # The dispatcher calls this: the hook must not see or change the context variables of the dispatcher.
        contextvars.copy_context().run(self._call, run.job_run, refusal, error)

    def _report_lost(self, run: RunningJob) -> None:
        """Report a lost run once its row shows who has ended it."""
        seconds = self._seconds(run)

        async def report() -> None:
            name: Ending = "cancelled" if await self._lost.was_cancelled(run.record) else "lost"
            self._call(run.job_run, RunOutcome(name=name, final=name == "cancelled", seconds=seconds), None)

        self._lost.spawn(report())

    def _outcome(self, run: RunningJob, name: str, outcome: Outcome) -> RunOutcome:
        return run_outcome(name, outcome, self._seconds(run))

    def _seconds(self, run: RunningJob) -> float:
        began = run.job_run.began
        return max(0.0, self._now() - began) if began else 0.0

    def _call(self, job_run: JobRun, outcome: RunOutcome, error: BaseException | None) -> None:
        enter(job_run)
        middleware.report(self._layers, Context(job_run), outcome, error)
