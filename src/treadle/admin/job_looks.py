"""The part of `app.jobs` that reads: lists, searches, explains and estimates jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self

from msgspec import structs

from treadle.admin import acts, stored_values
from treadle.admin import estimate as estimates
from treadle.admin.audit import Receipt, without_entries
from treadle.admin.estimate import Copying, Estimate, in_turn
from treadle.admin.explain import MOST_AHEAD, Facts, explain, limits_within
from treadle.admin.explain.reading import Reader, explained
from treadle.admin.job_filters import MOST_SCANNED, check_count, id_of, query_of, text_of, worker_of
from treadle.admin.job_history import JobHistory, decoder_of, read_history
from treadle.admin.job_search import ALL, Hide, JobScope
from treadle.admin.job_search import find as search_rows
from treadle.admin.known_names import Names
from treadle.admin.moved_looks import Moved
from treadle.core import defaults
from treadle.core.errors import BadArgument, BadOption, StorageError, UnknownJob
from treadle.core.job import Job
from treadle.core.model import Record, State
from treadle.core.query_model import Order, Page, Query
from treadle.policy.cleanups import cleanup_id, with_published
from treadle.policy.pauses import is_paused
from treadle.policy.retry import read_policy
from treadle.producer import Client
from treadle.storage import Pages, check_stays, whole_row
from treadle.storage.contract import Storage
from treadle.storage.row_rules import within as in_reach
from treadle.tasks.core import TaskCore
from treadle.tasks.when import HasId
from treadle.workflow.streams import is_page

Filter = Any
READS: Final = 20  # pages that a list reads for one of its own
Told = Callable[[int], object]


class JobLooks:
    """See `Jobs`."""

    def __init__(
        self,
        client: Client,
        storage: Callable[[], Awaitable[Storage]],
        tasks: Mapping[str, TaskCore],
        now: Callable[[], float],
        names: Names,
        moved: Moved,
        most: int = defaults.MAX_STEP,
        scope: JobScope = ALL,
    ) -> None:
        self.names, self._moved, self._scope = names, moved, scope
        self._client, self._storage, self._tasks, self._now, self._most = client, storage, tasks, now, most
        self._acts = acts.Acts(client, storage, scope.queues, receipt=scope.receipt)

    def within(self, queues: tuple[str, ...], receipt: Receipt | None = None) -> Self:
        """A view for a caller whose rights cover these queues only; (): all queues.

        Jobs of other queues are unknown by id, and no call changes them, even if they are children of visible jobs.
        Lists must name a queue. receipt: an act on one job completes this entry of the audit log with the call that
        changes the job.
        """
        if not queues and receipt is None:
            return self
        return self._with(replace(self._scope, queues=queues or self.reach, receipt=receipt))

    @property
    def reach(self) -> tuple[str, ...]:
        """The queues of `within`; (): all."""
        return self._scope.queues

    def showing(
        self, hide: Hide | None, payloads: bool = True, shown: Callable[[Record], Record] | None = None
    ) -> Self:
        """A view whose searches find no secrets: `hide` replaces them in values, and `shown` in rows. With
        `payloads=False` searches ignore all arguments and errors."""
        return self._with(replace(self._scope, hide=hide, payloads=payloads, shown=shown))

    def _with(self, scope: JobScope) -> Self:
        return type(self)(
            self._client, self._storage, self._tasks, self._now, self.names, self._moved, self._most, scope
        )

    # --- reading

    async def get(self, job: HasId | str) -> Record:
        """The row of a job. Raises UnknownJob, or StorageMoved if the jobs have moved to another storage."""
        return (await self._get_with(id_of(job), ()))[0]

    async def _get_with(self, id: str, others: Sequence[str]) -> tuple[Record, Sequence[Record | None]]:
        """The row of a job as `get` returns it, and these other rows, in one call."""
        [stored, *rows] = await self._client.get([id, *others])
        row = await self._visible(id, stored)
        await self._moved.looked("app.jobs.get")
        return row, rows

    async def _visible(self, id: str, stored: Record | None) -> Record:
        if stored is None or not in_reach(self._scope.queues, stored.job.queue):
            await check_stays(await self._storage())
            raise UnknownJob(id)
        return stored

    async def whole(self, job: HasId | str) -> Record:
        """As `get`, with the large texts that are in a blob store; while it is away, without them. It has the values
        that its cleanup has published."""
        row = await self.get(job)
        cleanup = None
        if row.state in (State.FAILED, State.CANCELLED):
            [cleanup] = await self._client.get([cleanup_id(row.id, row.reopenings)])
        with suppress(StorageError):
            row = await whole_row(await self._storage(), row)
            cleanup = None if cleanup is None else await whole_row(await self._storage(), cleanup)
        return row if cleanup is None else with_published(row, cleanup)

    async def handle(self, job: HasId | str) -> Job[Any, Any]:
        """A Job that any process can wait for: `await (await app.jobs.handle(id)).result()`. Raises UnknownJob."""
        return self.job_of(await self.get(job))

    def job_of(self, row: Record) -> Job[Any, Any]:
        return Job(row.job.id, row.job.task, self._client, None)

    def arguments(self, row: Record) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of a job.

        If this app does not have the task they are plain values, and a payload that is not a call is the only argument.
        Raises BadArgument if this app has the task and it does not accept them.
        """
        task = self._tasks.get(row.job.task)
        if task is not None and not read_policy(row.job.retry).pass_result:
            try:
                return task.signature.decode_call(row.job.payload)
            except BadArgument as error:
                error.fails_as = None  # the error concerns this row, not the job that calls
                raise
        return stored_values.arguments(row.job.payload)

    async def list(
        self,
        /,
        *,
        cursor: str | None = None,
        limit: int = 50,
        count: bool = False,
        order: Order = "newest",
        scan: int | None = None,
        worker: str | None = None,
        **filters: Filter,
    ) -> Page:
        """One page of rows, without the steps of durable functions (`get` returns them); pass `page.cursor` to get the
        next page. Raises BadOption for an unknown filter.

        worker  only the jobs that the worker with this name runs now; bounded as `search` is

        With `scan` the call looks at no more rows than that, whatever the filters: the page may then be short, or
        empty, and still have a cursor. It says how many rows it looked at (`page.scanned`) and how far back
        (`page.scanned_to`). `search` always has such a bound, by default 100,000 rows, over HTTP and on Redis 10,000.
        Neither can be combined with `count`, because they do not look at all rows.

        Orders: newest, oldest, ended (latest ending first), queue, due (unfinished jobs, the earliest `due_at` first),
        started (running jobs, the earliest start first).
        """
        if not 0 <= limit <= 10_000:
            raise BadOption("limit", f"expected 0 to 10,000, found {limit!r}")
        text, worker = text_of(filters), worker_of(worker, filters)
        if count and (text is not None or worker is not None or scan is not None):
            raise BadOption("count", "cannot be combined with search, worker or scan, which look at a part of the rows")
        if worker is not None:
            filters["state"] = State.RUNNING
        if scan is not None:
            check_count("scan", scan, MOST_SCANNED, "rows")
        query = query_of(filters, cursor=cursor, limit=limit, count=count, order=order, scan=scan)
        storage = await self._storage()
        if text is not None or worker is not None:
            search = None if text is None else self._scope.search(text)
            page = await search_rows(storage, query, search, worker)
        else:
            page = await _found(storage, query)
        page = await without_entries(storage, query, page)
        await self._moved.looked("app.jobs.list")
        if not page.records and cursor is None and (limit or page.total == 0):
            await self.names.nothing_found(query.queue, query.task, query.label)
        return page

    async def iterate(self, /, **filters: Filter) -> AsyncIterator[Record]:
        """Yield every row that matches, oldest first. Reads them page by page."""
        async for page in Pages(lambda cursor: self.list(cursor=cursor, limit=500, order="oldest", **filters)):
            for row in page.records:
                yield row

    async def history(
        self,
        job: HasId | str,
        *,
        hide: Callable[[Record], Record] | None = None,
        value: Callable[[str], Any] = stored_values.value,
    ) -> JobHistory:
        """The last runs of a job, its steps and signals, and the states of its children. Raises UnknownJob.

        hide   removes secrets from the rows before they are read, for people
        value  decodes the texts that Treadle's own codec wrote
        """
        row = await self.whole(job)
        return await read_history(await self._storage(), row, decoder_of(self._tasks.get(row.job.task)), value, hide)

    async def position(self, job: HasId | str, *, most: int = MOST_AHEAD) -> int | None:
        """The number of queued jobs before this one in its queue, counted up to `most`; None if it is not queued.
        Raises UnknownJob, and BadOption for `most` below 1."""
        if most < 1:
            raise BadOption("most", f"expected at least 1, found {most!r}")
        return await self._ahead(await self.get(job), most)

    async def _ahead(self, row: Record, most: int = MOST_AHEAD) -> int | None:
        if row.queue_position is None:
            return None
        # The query names the queue because a token that is bound to queues must name one over HTTP.
        query = Query(queue=row.job.queue, order="queue", ahead_of=row.job.id, limit=0, count=True, scan=most)
        page = await (await self._storage()).find(query)
        return page.total

    async def explain(self, job: HasId | str) -> str:
        """Explain why a job is not running, or how it ended: the cause, since when, until when if that is known, which
        job or worker holds it up, and the command that changes it. Raises UnknownJob.

        If the jobs have moved to another storage, the sentence names it.
        """
        return await explained(self._facts, job, None if self.reach else self._client.outbox)

    async def eta(self, job: HasId | str) -> Estimate:
        """Estimate when a job starts and ends, and what would let it start earlier. Raises UnknownJob.

        The real rules run over a bounded copy of the queue, with the run times that workers have measured; see
        `Estimate.assumptions`. `start` is None for a job that has begun or ended, and for one that does not start by
        itself: `explanation` says why. Takes up to a second of CPU time, in a thread; the estimates of a process are
        made one after the other.
        """
        facts, storage = await self._facts(job), await self._storage()
        row, explanation = facts.row, explain(facts)
        if row.state.final or is_paused(row) or (facts.mark is not None and facts.mark.role in ("gone", "closing")):
            return Estimate(id=row.job.id, at=facts.now, explanation=explanation)
        seen = limits_within(await storage.glance(), self.reach)
        copy = await Copying(storage, self.reach).of_job(facts.waiting_row, seen, facts.ahead)
        return await in_turn(lambda: estimates.estimate(copy, row, explanation, self.reach))

    async def _facts(self, job: HasId | str) -> Facts:
        storage = await self._storage()
        reader = Reader(storage, self._scope.visible, self._ahead, self.reach, self._now())
        return await reader.facts_of(lambda: self.get(job))


async def _found(storage: Storage, query: Query) -> Page:
    """A page of rows without the pages of streams, of which a job may write ten a second. They stay if the query names
    ids, or the workflow that they are. The call reads `READS` pages at most, so the answer may be short."""
    page = await storage.find(query)
    if query.ids or query.root is not None:
        return page
    kept = [row for row in page.records if not is_page(row.job)]
    if len(kept) == len(page.records):
        return page
    last = page
    for _ in range(READS if query.scan is None else 0):
        if last.cursor is None or len(kept) == query.limit:
            break
        last = await storage.find(
            structs.replace(query, cursor=last.cursor, limit=query.limit - len(kept), count=False)
        )
        kept += [row for row in last.records if not is_page(row.job)]
    return structs.replace(page, records=tuple(kept), cursor=last.cursor)
