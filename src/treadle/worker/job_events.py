"""Builds the events of a run: their names, and the values that listeners receive."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from treadle.core.events import Emitter, Event
from treadle.core.model import EXPIRED, PAUSED, Outcome, Record, State
from treadle.execution import Ending, RunOutcome
from treadle.worker.running_job import RunningJob

RUNS_AGAIN: Final = ("retrying", "deferred", "released")


def tell(emitter: Emitter, worker: str, name: str, error: BaseException | None = None) -> None:
    """Emit an event of a worker."""
    if emitter.wants(name):
        emitter.emit(Event(name=name, worker=worker, error=error))


def name_of(record: Record, outcome: Outcome) -> str:
    if outcome.state is State.FAILED:
        return "expired" if outcome.reason == EXPIRED else "failed"
    if outcome.reason == PAUSED:
        return "paused"
    if outcome.state is State.READY:
        return "retrying" if outcome.attempt > record.attempt else "deferred"
    return str(outcome.state)


def run_outcome(name: str, outcome: Outcome, seconds: float) -> RunOutcome:
    """The outcome of a run as middleware sees it."""
    ending: Ending = name  # type: ignore[assignment]  # `name_of` has no other names
    return RunOutcome(
        name=ending,
        final=outcome.state.final,
        reason=outcome.reason,
        delay=outcome.delay if name in RUNS_AGAIN else None,
        seconds=seconds,
    )


def event_of(name: str, run: RunningJob, worker: str, outcome: Outcome | None = None) -> Event:
    record, job = run.record, run.record.job
    if name == "workflow.ended" and outcome is not None:
        record = replace(
            record,
            state=outcome.state,
            attempt=outcome.attempt,
            result=outcome.result,
            value=outcome.result if outcome.value is None else outcome.value,
            error=outcome.error,
            reason=outcome.reason,
            checkpoints=(*record.checkpoints, *outcome.checkpoints),
        )
    return Event(
        name=name,
        id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=record.attempt + (not record.function_done),
        worker=worker,
        error=outcome.error if outcome is not None and name != "deferred" else None,  # deferred: an earlier error
        record=record,
        delay=outcome.delay if name in RUNS_AGAIN and outcome is not None else None,
    )
