"""Counts what a worker's jobs end with, and times a sample of them, for the rows of metrics that the worker stores.

Nothing here may fail or delay a job. The rows are stored by a loop of their own, and a call that fails is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from treadle.concurrency.uncut import UncutCalls
from treadle.core import defaults
from treadle.core.errors import Locked, StorageUnavailable, TreadleError
from treadle.core.model import Outcome, Record, State
from treadle.metrics import Cell, ProcessCounts, Recorder, count, is_own, waited
from treadle.storage.contract import Storage
from treadle.worker.running_job import Ended, RunningJob

log = logging.getLogger("treadle")

EACH: Final = 8  # of the jobs that are started together, as many are timed at most
A_SECOND: Final = 64  # and as many in one second: timing costs 0.5 us a job
LONGEST: Final = 600.0  # s between two tries while the storage refuses the rows

_UNSEEN: Final = object()  # no task


class JobMetrics:
    """The metrics of one worker. Its methods run on the worker's event loop.

    source  the name of its rows, which no other start of a worker has
    now     the clock of this process
    counts  what scrapers read, see `ProcessCounts`; None: nothing reads it
    """

    def __init__(self, source: str, now: Callable[[], float], counts: ProcessCounts | None = None) -> None:
        self._recorder, self._now, self._counts = Recorder(source, now, counts), now, counts
        self._second, self._left = 0, A_SECOND
        self._cells: dict[object, tuple[str, Cell]] = {}  # task -> queue and cell of its last job in this minute
        self._uncounted = Cell("", "")  # the cell of Treadle's own jobs
        self._failing = False

    def starts(self, records: Sequence[Record]) -> int:
        """These claimed jobs are about to start. Returns how many of the first of them to time."""
        now, claimed = self._now(), records[0].started_at
        if claimed is not None:
            self._recorder.synchronize(claimed)
        if int(now) != self._second:
            self._second, self._left = int(now), A_SECOND
        number = min(EACH, len(records), self._left)
        self._left -= number
        return number

    def timed(self, run: RunningJob, outcome: Outcome | None) -> None:
        """A run that is part of the sample has ended with this outcome; None: another worker has its job."""
        record, began = run.record, run.job_run.began
        if began and outcome is not None:
            counts = outcome.state is State.SUCCEEDED or outcome.attempt > record.attempt
            self._begin()
            self._of(record).time(self._now() - began if counts else None, waited(record))

    def reported(self, record: Record, outcome: Outcome) -> None:
        """The storage has applied an outcome that a runner in another language reported."""
        if record.started_at is not None:
            self._begin()
            cell = self._of(record)
            count(cell, record, outcome)
            counts = outcome.state is State.SUCCEEDED or outcome.attempt > record.attempt
            cell.time(max(0.0, self._now() - record.started_at) if counts else None, waited(record))

    def lost(self, record: Record) -> None:
        """The lease of another worker on this job expired."""
        self._begin()
        cell = self._of(record)
        cell.retried += 1
        if self._counts is not None and cell is not self._uncounted:
            self._counts.lost.add(record.job.queue, record.job.task)

    def settled(self, ended: Sequence[Ended]) -> None:
        """The storage has applied these outcomes."""
        self._begin()
        task: object = _UNSEEN
        queue, cell, succeeded = "", self._uncounted, 0
        for run, outcome in ended:  # 0.06 us a job, of 13 us
            job = run.record.job
            if run.task is not task or job.queue != queue:
                cell.succeeded += succeeded
                succeeded, queue, cell = 0, job.queue, self._cell_of(run)
                task = _task_of(run) or _UNSEEN
            if outcome.state is State.SUCCEEDED:
                succeeded += 1
            else:
                count(cell, run.record, outcome)
            if outcome.followups and self._counts is not None:
                self._counts.enqueued.add_jobs(outcome.followups)
        cell.succeeded += succeeded

    def _begin(self) -> None:
        """Forget the cells of the last minute if it is over."""
        if self._recorder.begin():
            self._cells.clear()

    def _cell_of(self, run: RunningJob) -> Cell:
        queue, task = run.record.job.queue, _task_of(run)
        known = self._cells.get(task)
        if known is not None and known[0] == queue:
            self._recorder.changed = True
            return known[1]
        cell = self._of(run.record)
        if task is not None:
            self._cells[task] = queue, cell
        return cell

    def _of(self, record: Record) -> Cell:
        job = record.job
        if is_own(job.queue, job.task):
            return self._uncounted
        return self._recorder.cell(job.queue, job.task)

    def end(self) -> None:
        """The worker has stopped: leave what it counted to the counts of the process."""
        self._recorder.end()

    # --- storing

    async def run(self, storage: Storage, calls: UncutCalls) -> None:
        """Store the rows that changed, every `defaults.METRICS_EVERY` s."""
        pause = defaults.METRICS_EVERY
        while True:
            await asyncio.sleep(pause)
            stored = await calls.make(self.store(storage))
            pause = defaults.METRICS_EVERY if stored else min(2 * pause, LONGEST)

    async def store(self, storage: Storage) -> bool:
        """Store the rows that changed since the last call, if there are any. Returns whether that worked; if not, they
        are stored with the next call, and the first failure is logged."""
        self._cells.clear()
        rows = self._recorder.take()
        if not rows:
            return True
        try:
            await storage.store_metrics(rows)
        except Exception as error:  # also of a storage of the user's own, which may lack the method
            self._recorder.put_back(rows)
            if not self._failing and not isinstance(error, StorageUnavailable | Locked):  # other loops log an outage
                trace = None if isinstance(error, TreadleError) else error
                log.warning("could not store metrics (%s); retrying. Jobs are not affected", error, exc_info=trace)
            self._failing = True
            return False
        except BaseException:
            self._recorder.put_back(rows)
            raise
        self._failing = False
        return True


def _task_of(run: RunningJob) -> object | None:
    """The task of a run; None if its function is not run here, because it has returned before."""
    return run.task
