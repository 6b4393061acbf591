"""Stores the log lines of runs: those that have waited for `LAG` in pages of the stream `log` of their job, the last
ones with the outcome in the row of the job.

So the lines of a short run cost no call, and those of a long one are visible while it runs. Before its first page, a
run notes in the row that it writes pages: if it dies, the next run looks where they end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import StorageError, TreadleError
from treadle.core.model import LeaseRenewal, Outcome, Record, State
from treadle.execution.job_run import JobRun
from treadle.policy.run_log import LOG, MOST, LogLine, LogTail, RunLog, tail_of
from treadle.storage import whole
from treadle.storage.contract import Storage
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.log_capture import LogCapture
from treadle.worker.running_job import RunningJob
from treadle.worker.state import WorkerState
from treadle.workflow.streams import Group, Page, check_page, find_tail, page_id, page_row

log = logging.getLogger("treadle")

LAG: Final = 1.0  # s for which a line waits for others
PAGE: Final = 32 * 1024  # bytes of the lines of one page: too few for a blob store
LEAST: Final = defaults.KEEP_LEAST + 1.0  # s for which a page is kept


class _Over(Exception):
    """This run stores no more lines: the job is another run's, or the stream is full."""


class _Place(NamedTuple):
    """The end of the pages.

    number   of the next page
    version  of its row; None: it is not stored
    end      the offset behind the last entry
    size     bytes of all entries
    """

    number: int
    version: int | None
    end: int
    size: int


class RunLogs:
    """The logs of the runs of one worker."""

    def __init__(self, capture: LogCapture, state: WorkerState, storage: Storage, heartbeat: Heartbeat) -> None:
        self.capture, self.loop, self.storage, self.heartbeat = capture, state.loop, storage, heartbeat
        self._flushing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def begin(self, run: RunningJob) -> None:
        """Collect the lines of this run from now on."""
        run_log = self.capture.begin(run.job_run)
        run_log.reader = LogWriter(self, run, run_log)

    async def kept(self, run: JobRun, outcome: Outcome) -> Outcome:
        """The outcome of a run with its last lines."""
        writer = None if run.log is None else run.log.reader
        pair = await writer.end(outcome) if isinstance(writer, LogWriter) else None
        if pair is None:
            return outcome
        run.carried = (*run.carried, pair)  # also for the outcome that replaces this one if its commit fails
        return replace(outcome, checkpoints=(*outcome.checkpoints, pair))

    def soon(self, writer: LogWriter) -> None:
        """Store the lines of this run after `LAG`."""
        self.loop.call_later(LAG, self._flush, writer)

    def _flush(self, writer: LogWriter) -> None:
        if not self._is_closed and not writer.is_over:
            task = self.loop.create_task(writer.flush())
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)

    def close(self) -> tuple[asyncio.Task[None], ...]:
        """Collect and store nothing more. Returns the tasks to cancel."""
        self._is_closed = True
        self.capture.detach()
        return tuple(self._flushing)


class LogWriter:
    """Writes the log of one run."""

    def __init__(self, logs: RunLogs, run: RunningJob, run_log: RunLog) -> None:
        self._logs, self._run, self._log = logs, run, run_log
        self._turn = asyncio.Lock()
        self._new: list[LogLine] = []  # taken, but not stored
        self._old: LogTail | None = None  # what the row has of earlier runs; read with the first line
        self._place: _Place | None = None
        self._notes = False  # the row says that this run writes pages
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be stored in pages any more."""
        return self._has_ended or self._run.ended or self._run.cancelled

    def begun(self) -> None:
        """There are lines. Called in any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._logs.loop.call_soon_threadsafe(self._logs.soon, self)

    async def flush(self) -> None:
        """Store the lines that wait in pages. While the storage does not answer, they wait longer."""
        async with self._turn:
            if self.is_over:
                return
            try:
                await self._store()
            except _Over:
                self._has_ended = True
            except StorageError:
                self._logs.soon(self)
            except TreadleError as error:
                self._has_ended = True
                log.warning("log lines of job %s are not stored while it runs: %s", self._record.job.id, error)

    async def end(self, outcome: Outcome) -> tuple[str, str] | None:
        """The run ends: the checkpoint with its last lines, or None if nothing has changed."""
        if self._old is None and not self._log:
            return None
        async with self._turn:
            may_store, self._has_ended = not self._has_ended, True
            stored, lines = tail_of(self._record.checkpoints), self._lines(0)
            are_many = self._notes or stored.open or sum(line.size for line in lines) > MOST
            if may_store and self._new and are_many:
                with suppress(TreadleError, _Over):
                    await self._store()
            if self._place is None:
                tail = replace(stored, lines=tuple(self._lines(0)))
            else:
                tail = LogTail(self._place.end, tuple(self._lines(self._place.end)), self._place.number)
            if outcome.state is State.SUCCEEDED and tail.page > 1:
                with suppress(StorageError):
                    await self._release(tail.page)
            return None if tail == stored else tail.cut.pair

    async def _release(self, end: int) -> None:
        """The job succeeds: keep its pages before this one as long as its row. They are kept as long as that of a
        failed job, whose log people read."""
        job = self._record.job
        if job.keep < job.keep_failed:
            ids = [page_id(job.id, LOG, number) for number in range(1, end)]
            keep = max(job.keep, LEAST)
            # A page is settled once, so it has the version 1; a call for another one changes nothing.
            await self._logs.storage.settle([Outcome(id=id, version=1, state=State.SUCCEEDED, keep=keep) for id in ids])

    @property
    def _record(self) -> Record:
        return self._run.record

    def _lines(self, end: int) -> list[LogLine]:
        """The lines that are not in pages, which have this end."""
        if self._old is None:
            self._old = tail_of(self._record.checkpoints)
        self._new += self._log.take()
        return [*self._old.after(end), *self._new]

    # --- pages

    async def _store(self) -> None:
        """Store all lines in pages. Raises _Over, and StorageError."""
        await self._note()
        while True:
            place = self._place or await self._look()
            lines = self._lines(place.end)
            if not lines:
                self._place = place
                return
            count, size = 0, 0
            while count < len(lines) and (not count or size + lines[count].size <= PAGE):
                size += lines[count].size
                count += 1
            if place.end + count > defaults.MAX_CHUNKS or place.size + size > defaults.MAX_STREAM:
                self._place = place
                raise _Over
            if await self._stored(place, lines[:count], size):
                left = len(lines) - count
                self._old, self._new = LogTail(), lines[len(lines) - left :]
                self._place = _Place(place.number + 1, None, place.end + count, place.size + size)
            else:
                self._place = None

    async def _note(self) -> None:
        """Note in the row that this run writes pages. The row keeps its lines until the run ends."""
        if self._notes:
            return
        stored, record = tail_of(self._record.checkpoints), self._record
        if not stored.open:
            renewal = LeaseRenewal(
                record.id, record.version, checkpoints=(replace(stored, open=True).pair,), note=self._run.job_run.note
            )
            heartbeat = self._logs.heartbeat
            answer = await heartbeat.send([renewal], heartbeat.lease_of(self._run))
            if record.id in answer.lost:
                raise _Over
            if record.id in answer.unsaved:
                raise StorageError(f"the row of job {record.id} is locked")
        self._notes = True

    async def _look(self) -> _Place:
        """Find the end of the pages. Raises _Over if a later run writes the log."""
        job, old = self._record.job, tail_of(self._record.checkpoints)
        tail = await find_tail(self._read, job.id, LOG, old.page)
        if tail.row is not None:
            check_page(tail.row, job.queue, job.id, LOG)
        page = tail.page or Page(0, 0)
        if page.version > self._record.version:
            raise _Over
        is_open = tail.row is not None and not tail.row.state.final
        version = tail.row.version if is_open and tail.row is not None else None
        number = tail.number if is_open else tail.number + 1 if tail.number else old.page  # pruned
        return _Place(number, version, max(page.end, old.start), page.size)

    async def _read(self, ids: Sequence[str]) -> Sequence[Record | None]:
        storage = self._logs.storage
        return await whole(storage, await storage.get(ids), "result")

    async def _stored(self, place: _Place, lines: list[LogLine], size: int) -> bool:
        """Store one page; False: another run has stored one in its place."""
        job, storage, version = self._record.job, self._logs.storage, place.version
        if version is None:
            new = page_row(job.queue, job.id, LOG, place.number, max(job.keep, job.keep_failed, LEAST))
            [row] = await storage.enqueue([new])
            if check_page(row, job.queue, job.id, LOG).state.final:
                return False
            version = row.version
        values = tuple([Raw(msgspec.json.encode(line)) for line in lines])
        page = Page(place.end, self._record.version, steps=("",), groups=(Group(0, values),), size=place.size + size)
        outcome = Outcome(
            id=page_id(job.id, LOG, place.number), version=version, state=State.SUCCEEDED, result=page.text
        )
        [answer] = await storage.settle([outcome])
        if answer.status == "refused":
            raise StorageError(answer.reason or "refused")
        return answer.status == "applied"
