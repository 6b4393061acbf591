"""Saying that a job was lost: taken from this worker by another, not ended by somebody who meant to.

Without it every job that is cancelled by hand while it runs would be told twice, as cancelled and as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from treadle.core.events import Emitter, Event
from treadle.errors import StorageError
from treadle.storage.contract import Storage
from treadle.worker import job_log
from treadle.worker.state import RunningJob

log = logging.getLogger("treadle")


class LostReporter:
    """Looks who has the job now, beside the loops, and only when a listener or the log wants it."""

    def __init__(self, storage: Storage, emitter: Emitter, worker: str) -> None:
        self._storage, self._emitter, self._worker = storage, emitter, worker
        self._looking: set[asyncio.Task[None]] = set()
        self.doubted: Callable[[], None] = lambda: None  # called for each: the storage may have been emptied

    def tell(self, run: RunningJob) -> None:
        self.doubted()
        if self._emitter.wants("lost") or job_log.wanted("lost", run.record.job.task):
            task = asyncio.create_task(self._look(run))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look(self, run: RunningJob) -> None:
        job = run.record.job
        try:
            [row] = await self._storage.get([job.id])
        except StorageError:
            log.info("%s %s is no longer ours; who has it cannot be asked now", job.task, job.id)
            return
        # Ended in one step from the version that was ours: by hand. Whoever else claimed it has raised it once more.
        by_hand = row is not None and row.state.final and row.version == run.record.version + 1
        if row is not None and not by_hand:
            event = Event(
                name="lost",
                id=job.id,
                task=job.task,
                queue=job.queue,
                worker=self._worker,
                attempt=run.record.attempt + 1,
                record=run.record,
            )
            if job_log.wanted("lost", job.task):
                job_log.write(event)
            self._emitter.emit(event)

    async def settled(self) -> None:
        """Wait for the looks under way."""
        if self._looking:
            await asyncio.gather(*self._looking, return_exceptions=True)
