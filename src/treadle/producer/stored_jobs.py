"""Reports the jobs that a call has stored: counts them for scrapers, and emits the event `enqueued` for each."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.events import Emitter, Event
from treadle.core.model import NewJob, Record
from treadle.metrics import PairCounts


def report_stored(counted: PairCounts | None, emitter: Emitter, jobs: Sequence[NewJob], rows: Sequence[Record]) -> None:
    """Report each job that was stored, and for which no other row was returned."""
    is_wanted = emitter.wants("enqueued")
    if counted is None and not is_wanted:
        return
    stored = [
        row
        for new, row in zip(jobs, rows, strict=True)
        if row.job is new or (row.job.id == new.id and row.job.nonce == new.nonce)
    ]
    if counted is not None:
        counted.add_jobs([row.job for row in stored])
    for row in stored if is_wanted else ():
        job = row.job
        emitter.emit(Event(name="enqueued", id=job.id, task=job.task, queue=job.queue, record=row))
