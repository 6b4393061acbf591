"""What became of a run, as an event: its name, and what is told beside it.

Without it the hot loop would also have to know the words of the listeners.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.core.events import Event
from treadle.core.model import EXPIRED, Outcome, Record, State
from treadle.worker.state import RunningJob


def name_of(record: Record, outcome: Outcome) -> str:
    if outcome.state is State.FAILED:
        return "expired" if outcome.reason == EXPIRED else "failed"
    if outcome.state is State.READY:
        return "retrying" if outcome.attempt > record.attempt else "deferred"
    return str(outcome.state)


def event_of(name: str, run: RunningJob, worker: str, outcome: Outcome | None = None) -> Event:
    record, job = run.record, run.record.job
    if name == "workflow.ended" and outcome is not None:
        record = replace(
            record,
            state=outcome.state,
            attempt=outcome.attempt,
            result=outcome.result,
            value=outcome.value,
            error=outcome.error,
            reason=outcome.reason,
            memo=(*record.memo, *outcome.memo),
        )
    return Event(
        name=name,
        id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=record.attempt + (not record.ran),
        worker=worker,
        error=outcome.error if outcome is not None and name != "deferred" else None,  # a deferred job keeps an old one
        record=record,
        delay=outcome.delay if outcome is not None and outcome.state is State.READY else None,
    )
