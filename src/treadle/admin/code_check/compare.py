"""Reads every unfinished row of a storage, page by page, and compares it with the code of an app.

A page is one read of the storage, of PAGE rows, so other processes are not held up. The pages are no snapshot: a job
that is stored, or ends, while they are read may be missing. A million rows take 20 s of CPU time on SQLite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, Protocol

from msgspec import Struct

from treadle.admin.code_check import limits, schedules
from treadle.admin.code_check.findings import Findings, Report
from treadle.admin.code_check.results import ResultChecks
from treadle.admin.code_check.rows import OWN, PlacementChecks, RowChecks
from treadle.admin.job_filters import UNFINISHED
from treadle.admin.limits import Limits
from treadle.core import defaults
from treadle.core.errors import BadArgument, StorageError, error_line
from treadle.core.model import NewJob, Record, State
from treadle.core.query_model import Order, Query
from treadle.outbox import Outbox
from treadle.policy.retry import read_policy
from treadle.scheduling import Schedules
from treadle.serialization import misfits
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore
from treadle.tasks.reducers import Reducer
from treadle.workflow.plan import FLOW
from treadle.workflow.signals import SIGNAL

PAGE: Final = 200  # rows of one read, with all their steps

Progress = Callable[[int, int], object]
"""Called after each page with the rows that were looked at, and how many there are."""


class Options(Struct, frozen=True, kw_only=True):
    """The extent of a check.

    serves  the queues of the workers, if they are started with --queues; (): those of the tasks
    only    only the jobs of these queues; (): of all
    sample  at most this many of the oldest, and of the newest jobs; None: all jobs
    outbox  also the jobs that the outbox of the app has not delivered yet
    """

    serves: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    sample: int | None = None
    outbox: bool = True


class HasOutbox(Protocol):
    """A choice of a storage, which may have an outbox."""

    @property
    def outbox(self) -> Outbox | None: ...


class CheckedApp(Protocol):
    """The parts of an app that a check reads."""

    tasks: dict[str, TaskCore]
    reducers: dict[str, Reducer]
    limits: Limits
    schedules: Schedules

    @property
    def storage(self) -> Storage: ...
    @property
    def choice(self) -> HasOutbox: ...


async def check_code(core: CheckedApp, options: Options, progress: Progress = lambda rows, jobs: None) -> Report:
    """Compare the tasks, schedules and limits of an app with its storage, which is open. Only reads. Raises
    StorageError."""
    return await _Check(core, options, progress).run()


class _Check:
    def __init__(self, core: CheckedApp, options: Options, progress: Progress) -> None:
        self._core, self._options, self._progress = core, options, progress
        self._storage: Storage = core.storage
        self._findings, self._limits = Findings(), limits.LimitNames()
        served = options.serves or {task.queue for task in core.tasks.values()} or {defaults.QUEUE}
        self._rows = RowChecks(core.tasks, core.reducers, self._findings, frozenset(served))
        self._results = ResultChecks(core.tasks, self._findings)
        self._places = PlacementChecks({}, (), self._findings)
        self._looked = self._jobs = self._undelivered = 0

    async def run(self) -> Report:
        outbox = self._core.choice.outbox
        if outbox is not None and self._options.outbox:  # read first: a job delivered meanwhile is not missed
            await _read_outbox(outbox, self._options.sample, self._undelivered_job, self._findings)
        stats = await self._storage.stats()
        counts = stats.counts
        self._places = PlacementChecks(self._core.tasks, stats.workers, self._findings)
        unfinished = [count for count in counts if count.state in UNFINISHED and self._counts(count.queue, count.task)]
        self._jobs = sum(count.jobs for count in unfinished)
        async for page in self._pages():
            await self._page(page)
            self._progress(self._looked, self._jobs)
        rules = await self._storage.limits(use=False)
        mine = [use for use in rules if not use.key.startswith("treadle")]
        limits.look(mine, self._core.limits.declarations, self._limits, self._findings)
        sampled = self._options.sample is not None and self._looked < self._jobs
        return Report(
            findings=self._findings.sorted(),
            jobs=self._jobs,
            looked=self._looked,
            outbox=self._undelivered,
            sampled=sampled,
            patches=self._rows.all_patches(),
        )

    def _counts(self, queue: str, task: str) -> bool:
        if not task or (task.startswith(OWN) and task != FLOW):
            return False
        return not self._options.only or queue in self._options.only

    def _undelivered_job(self, job: NewJob) -> None:
        if not self._counts(job.queue, job.task):
            return
        self._undelivered += 1
        self._rows.look(Record(job=job, version=1, state=State.READY))
        if job.limits:
            self._limits.note(job.limits, job.id)

    # --- reading

    async def _pages(self) -> AsyncIterator[Sequence[Record]]:
        if self._options.sample is None:
            async for page in self._walk("oldest", None):
                yield page
            return
        seen = set[str]()
        orders: tuple[Order, Order] = ("oldest", "newest")
        for order in orders:
            async for page in self._walk(order, self._options.sample):
                yield [row for row in page if row.job.id not in seen]
                seen.update(row.job.id for row in page)

    async def _walk(self, order: Order, most: int | None) -> AsyncIterator[Sequence[Record]]:
        cursor: str | None = None
        while most is None or most > 0:
            limit = PAGE if most is None else min(PAGE, most)
            query = Query(state=UNFINISHED, order=order, limit=limit, cursor=cursor, whole=True)
            page = await self._storage.find(query)
            yield page.records
            cursor = page.cursor
            if cursor is None:
                return
            most = None if most is None else most - len(page.records)

    async def _page(self, rows: Sequence[Record]) -> None:
        wanted = dict[str, Sequence[str]]()
        for row in rows:
            job = row.job
            if schedules.is_schedule(row):
                schedules.look(row, self._core.schedules.declarations, self._call, self._findings)
            elif not job.task and job.id.startswith(SIGNAL) and job.parent is not None:
                wanted[job.id] = (job.parent,)
            elif self._counts(job.queue, job.task):
                self._looked += 1
                self._rows.look(row)
                self._places.look(row)
                if job.limits:
                    self._limits.note(job.limits, job.id)
                if (row.after or job.after) and (ids := self._results.needs(row)):
                    wanted[job.id] = ids
        if wanted:
            await self._related(rows, wanted)

    async def _related(self, rows: Sequence[Record], wanted: dict[str, Sequence[str]]) -> None:
        """Check what needs the rows of other jobs."""
        row_of = {row.job.id: row for row in rows}
        missing = dict.fromkeys(id for ids in wanted.values() for id in ids if id not in row_of)
        for ids in _parts(list(missing)):
            row_of |= {row.job.id: row for row in await self._storage.get(ids) if row is not None}
        for row in rows:
            if row.job.id in wanted and not row.job.task:
                self._rows.signal(row, row_of.get(row.job.parent or ""))
            elif row.job.id in wanted:
                self._results.look(row, row_of)

    def _call(self, job: NewJob) -> str | None:
        """Why this code cannot run the job of a schedule."""
        task = self._core.tasks.get(job.task)
        if task is None:
            return f"there is no task {job.task!r} any more"
        later = job.retry is not None and bool(read_policy(job.retry).pass_result)
        errors: list[BadArgument] = misfits(task.signature, job.payload, later)
        return "; ".join(str(error) for error in errors) or None


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), PAGE):
        yield ids[start : start + PAGE]


OUTBOX_PAGE: Final = 5_000  # rows of one read of an outbox


async def _read_outbox(outbox: Outbox, most: int | None, look: Callable[[NewJob], None], findings: Findings) -> None:
    """Pass each job to `look`; with `most`, only this many of the oldest. An outbox that cannot be read is a note: a
    check may have rights for the storage only."""
    after, seen = 0, 0
    findings.place = "in the outbox"
    try:
        while most is None or seen < most:
            limit = OUTBOX_PAGE if most is None else min(OUTBOX_PAGE, most - seen)
            page = await outbox.undelivered(after, limit)
            for _, id, job in page:
                if job is None:
                    _unreadable(id, findings)
                else:
                    look(job)
            if len(page) < limit:
                return
            after, seen = page[-1][0], seen + len(page)
    except StorageError as error:
        findings.add(
            "outbox",
            outbox.url,
            f"its jobs were not checked: {error_line(str(error))}",
            "give its URL with --outbox, or leave it out with --no-outbox",
            level="note",
        )
    finally:
        findings.place = None


def _unreadable(id: str, findings: Findings) -> None:
    findings.add(
        "outbox",
        "a row",
        "no job can be read from it",
        "`treadle storage relay list` shows it, `treadle storage relay delete` removes it",
        example=id,
        state="unreadable",
    )
