"""Handles the answers to settled outcomes: events, log lines, and outcomes to settle again."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from treadle.core.errors import StorageError, TreadleError
from treadle.core.events import reaped
from treadle.core.model import APPLIED, Outcome, Record, Settled
from treadle.policy import attempts, guilt, judge
from treadle.worker import job_log
from treadle.worker.job_events import event_of, name_of
from treadle.worker.parts import WorkerParts
from treadle.worker.running_job import Ended, RunningJob, settled_before
from treadle.workflow import failure, waits_again

log = logging.getLogger("treadle")

LOCKED = 600.0  # seconds to keep trying while another transaction locks a row that the outcome changes
APART = 0.2  # s between two tries


class Settler:
    """One for each worker. It emits the events of a job after the storage has stored its outcome."""

    def __init__(self, parts: WorkerParts) -> None:
        self._hide = parts.app.redactor.text
        self._state, self._emitter, self._lost, self._metrics = (
            parts.state,
            parts.app.emitter,
            parts.lost,
            parts.metrics,
        )
        self._run_reports, self._storage = parts.run_reports, parts.storage
        self._turn = asyncio.Lock()  # held while outcomes are settled that other transactions hold up

    def settled(
        self, sent: list[tuple[RunningJob, Outcome]], settled: Sequence[Settled], claimed: Sequence[Record]
    ) -> None:
        """Handle the answers to `sent`. For an outcome that the storage refuses, the run is settled as failed, once.

        claimed  jobs that came with the same answer
        """
        silent, troubles = self._emitter.silent, self._state.troubles
        if silent and not troubles and settled.count(APPLIED) == len(sent) == len(settled):
            if self._metrics is not None:
                self._metrics.settled(sent)
            return
        applied: list[Ended] = []
        for (run, outcome), answer in zip(sent, settled, strict=True):
            if silent and answer is APPLIED and run.job_run not in troubles:
                applied.append((run, outcome))
                continue  # no listener and no log line needs it
            if answer.status == "applied" or (
                answer.status == "stale"
                and not outcome.state.final  # an ended job is not claimed again: its lease had expired before
                and (_came_back(outcome, claimed) or self._state.was_applied(outcome))
            ):
                applied.append((run, outcome))
                self.ended(run, outcome)
            elif answer.status == "stale" and outcome.state.final and outcome.after:
                troubles.pop(run.job_run, None)
                self._state.settle_again(run, run.job_run.with_carried(waits_again(run.record)))
            elif answer.status == "stale":
                troubles.pop(run.job_run, None)
                job = run.record.job
                log.info("another worker or caller has settled %s %s: %s", job.task, job.id, answer.reason)
                if run.begun and run.job_run.why != "lost":
                    self._lost.tell(run)
            elif answer.again and self._may_settle_again(run):
                self._state.settle_apart(run, outcome, self._alone(run, outcome))
            elif run.refused or answer.again:
                job = run.record.job
                troubles.pop(run.job_run, None)
                log.error("could not settle %s %s (%s); its lease will expire", job.task, job.id, answer.reason)
            else:
                self._refused(run, judge.unstorable(outcome, answer.reason or "refused"))
        self._count(applied)

    def _refused(self, run: RunningJob, error: StorageError) -> None:
        """Settle a run as failed, because the storage has refused its outcome."""
        run.refused = True
        self._state.troubles[run.job_run] = error
        started_at = run.record.started_at or 0.0
        failed = judge.failed(run.record, run.rules, error, None, started_at, 1.0)
        failed = attempts.noted(run.record, failed, self._state.name, started_at)
        if run.job_run.durable is not None:
            failed = run.job_run.durable.with_cleanup(failed)
        if run.record.function_done:
            failed = failure(run.record, str(error))
        if self._run_reports is not None:
            self._run_reports.refused(run, failed, error)
        self._state.settle_again(run, failed)

    async def _alone(self, run: RunningJob, outcome: Outcome) -> None:
        """Settle an outcome again that another transaction holds up. The call waits up to 1 s for the lock, and would
        delay all other outcomes of its request. Such outcomes are settled one at a time, because each takes a
        connection."""
        while True:
            await asyncio.sleep(APART)
            try:
                async with self._turn:
                    settled = await self._storage.settle([outcome])
            except TreadleError:
                self._state.settle_again(run, outcome)
                return
            if not (settled[0].again and self._may_settle_again(run)):
                break
        self.settled([(run, outcome)], settled, ())

    def _may_settle_again(self, run: RunningJob) -> bool:
        """Whether to settle an outcome again whose rows were locked."""
        now = self._state.loop.time()
        if not run.blocked_since:
            job = run.record.job
            log.warning("another open transaction holds up the outcome of %s %s; settling it again", job.task, job.id)
            run.blocked_since = now
        return now - run.blocked_since < LOCKED

    def committed(self, run: RunningJob, outcome: Outcome) -> None:
        """Log and count an outcome that the transaction of its run has stored, and emit its events."""
        self._count([(run, outcome)])
        self.ended(run, outcome)

    def _count(self, applied: list[Ended]) -> None:
        if self._metrics is not None and applied:
            self._metrics.settled(applied)

    def ended(self, run: RunningJob, outcome: Outcome) -> None:
        """Log the stored outcome of this run and emit its events."""
        emitter, final, troubles = self._emitter, outcome.state.final, self._state.troubles
        in_trouble = run.job_run in troubles
        error = troubles.pop(run.job_run, None)
        if emitter.silent and not in_trouble:
            return
        name = name_of(run.record, outcome)
        if not (run.record.function_done and not final):
            logged, emitted = in_trouble and job_log.wanted(name, run.record.job.task), emitter.wants(name)
            if logged or emitted:
                event = event_of(name, run, self._state.name, outcome)
                if logged:
                    # Log with the context variables of the run, so that filters of the user find its trace or tenant.
                    # Use a copy, because the run itself may be executing this.
                    context = contextvars.Context() if run.context is None else run.context.copy()
                    context.run(job_log.write, event, error, lambda text: self._hide(text, run.job_run.record))
                if emitted:
                    emitter.emit(event)
        if final and run.record.job.root is None and emitter.wants("workflow.ended"):
            emitter.emit(event_of("workflow.ended", run, self._state.name, outcome))

    def reaped(self, record: Record) -> None:
        """Log and emit that this job came from a worker whose lease had expired."""
        if self._metrics is not None:
            self._metrics.lost(record)
        event = replace(reaped(record), error=guilt.words(record))
        if job_log.wanted(event.name, event.task):
            job_log.write(event)
        if self._emitter.wants(event.name):
            self._emitter.emit(event)


def _came_back(outcome: Outcome, claimed: Sequence[Record]) -> bool:
    """Whether the request that settled this job also claimed it again, in a first try whose answer was lost."""
    return any(row.job.id == outcome.id and settled_before(row) == outcome.version for row in claimed)
