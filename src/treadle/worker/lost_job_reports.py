"""Reports lost jobs: those that another worker claimed while this one ran them.

A running job that was settled on purpose, for example cancelled by hand, is not reported as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from treadle.core.errors import StorageError
from treadle.core.events import Emitter
from treadle.core.model import Record, State
from treadle.storage.contract import Storage
from treadle.worker import job_log
from treadle.worker.job_events import event_of
from treadle.worker.running_job import RunningJob

log = logging.getLogger("treadle")


class LostReporter:
    """Reads the row of a lost job in a separate asyncio task, only if a listener or the log wants the event.

    doubt  called for each lost job: the storage may have been emptied
    """

    def __init__(self, storage: Storage, emitter: Emitter, worker: str, doubt: Callable[[], None]) -> None:
        self._storage, self._emitter, self._worker, self._doubt = storage, emitter, worker, doubt
        self._reports: set[asyncio.Task[None]] = set()

    def tell(self, run: RunningJob) -> None:
        self._doubt()
        if self._emitter.wants("lost") or job_log.wanted("lost", run.record.job.task):
            self.spawn(self._report(run))

    def spawn(self, report: Coroutine[Any, Any, None]) -> None:
        """Run a report in an asyncio task, which `settled` waits for."""
        task = asyncio.create_task(report)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def was_cancelled(self, record: Record) -> bool:
        """Whether a caller has cancelled a job that was lost while this worker ran it as `record`. False if the row
        cannot be read."""
        try:
            [row] = await self._storage.get([record.job.id])
        except StorageError:
            return False
        return row is not None and row.state is State.CANCELLED and _by_hand(record, row)

    async def _report(self, run: RunningJob) -> None:
        job = run.record.job
        try:
            [row] = await self._storage.get([job.id])
        except StorageError:
            log.info("%s %s was lost; its row cannot be read now to find out where it runs", job.task, job.id)
            return
        if row is not None and not _by_hand(run.record, row):
            event = event_of("lost", run, self._worker)
            if job_log.wanted("lost", job.task):
                job_log.write(event)
            self._emitter.emit(event)

    async def settled(self) -> None:
        """Wait for the reports under way."""
        if self._reports:
            await asyncio.gather(*self._reports, return_exceptions=True)


def _by_hand(record: Record, row: Record) -> bool:
    """Whether the job was settled on purpose: it has ended, and not under the lease of another worker. The row of an
    ended job keeps the claim under which it ended; None: no worker held it."""
    return row.state.final and row.worker in (record.worker, None)
