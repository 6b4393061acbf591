"""What happens after outcomes were sent to be settled: events, the log, and what is tried again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from treadle.core.events import lease_expired
from treadle.core.model import APPLIED, Outcome, Record, Settled
from treadle.errors import StorageError
from treadle.policy import judge
from treadle.worker import job_log
from treadle.worker.job_events import event_of, name_of
from treadle.worker.lost_jobs import LostReporter
from treadle.worker.parts import WorkerParts
from treadle.worker.state import RunningJob
from treadle.workflow.fold import failure

log = logging.getLogger("treadle")

LOCKED = 30.0  # s that an outcome is tried to be settled while another transaction holds a row it would change


class Settler:
    """One for each worker. Events of a job are emitted here, after the storage has stored what they say."""

    def __init__(self, parts: WorkerParts, lost: LostReporter) -> None:
        self._state, self._emitter, self._lost = parts.state, parts.app.emitter, lost

    def settled(
        self, outs: list[tuple[RunningJob, Outcome]], settled: Sequence[Settled], claimed: Sequence[Record]
    ) -> None:
        """Take the answers to `outs`: emit events; an outcome the storage refuses becomes a failed attempt, once.

        `claimed` came with the same answer."""
        silent, troubles = self._emitter.silent, self._state.troubles
        if silent and not troubles and settled.count(APPLIED) == len(outs) == len(settled):
            return
        for (run, outcome), answer in zip(outs, settled, strict=True):
            if silent and answer is APPLIED and run.context not in troubles:
                continue  # no listener and no log line
            if answer.status == "applied" or (
                answer.status == "stale"
                and not outcome.state.final  # what has ended does not come back: its lease had run out before
                and (_came_back(outcome, claimed) or self._state.came_back(outcome.id, outcome.version))
            ):
                self.ended(run, outcome)
            elif answer.status == "stale":
                troubles.pop(run.context, None)
                log.info(
                    "%s %s was settled by somebody else: %s", run.record.job.task, run.record.job.id, answer.reason
                )
                if run.context.why != "lost":
                    self._lost.tell(run)
            elif answer.again and self._may_wait(run):
                self._state.outcomes.append((run, outcome))  # it ran well: somebody only stands in the way
                self._state.wake.set()
            elif run.refused or answer.again:
                job = run.record.job
                troubles.pop(run.context, None)
                log.error("%s %s cannot be settled (%s); its lease will run out", job.task, job.id, answer.reason)
            else:
                run.refused = True
                troubles[run.context] = None
                error = StorageError(answer.reason or "refused")
                again = judge.failed(run.record, run.rules, error, None, run.record.started_at or 0.0, 1.0)
                if run.record.ran:
                    again = failure(run.record, str(error))
                self._state.outcomes.append((run, again))
                self._state.wake.set()

    def _may_wait(self, run: RunningJob) -> bool:
        """Whether an outcome that a locked row keeps from being settled is tried once more. Each try waits for 1 s."""
        now = self._state.loop.time()
        run.blocked_since = run.blocked_since or now
        return now - run.blocked_since < LOCKED

    def ended(self, run: RunningJob, outcome: Outcome) -> None:
        """The outcome of this run is stored: log it, emit its events."""
        emitter, final, troubles = self._emitter, outcome.state.final, self._state.troubles
        in_trouble = run.context in troubles
        error = troubles.pop(run.context, None)
        if emitter.silent and not in_trouble:
            return
        name = name_of(run.record, outcome)
        if not (run.record.ran and not final):
            logged, heard = in_trouble and job_log.wanted(name, run.record.job.task), emitter.wants(name)
            if logged or heard:
                event = event_of(name, run, self._state.name, outcome)
                if logged:
                    job_log.write(event, error)
                if heard:
                    emitter.emit(event)
        if final and run.record.job.root is None and emitter.wants("workflow.ended"):
            emitter.emit(event_of("workflow.ended", run, self._state.name, outcome))

    def lease_expired(self, record: Record) -> None:
        """This job was claimed from a worker whose lease had expired."""
        event = lease_expired(record)
        if job_log.wanted(event.name, event.task):
            job_log.write(event)
        if self._emitter.wants(event.name):
            self._emitter.emit(event)


def _came_back(outcome: Outcome, claimed: Sequence[Record]) -> bool:
    """Whether its own trip brought the job back: it was settled, claimed, and the answer that said so was lost."""
    return any(row.job.id == outcome.id and row.version == outcome.version + 2 for row in claimed)
