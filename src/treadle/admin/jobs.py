"""`app.jobs`: looking at jobs and acting on them, one by one or by filter.

Without it a person at three in the morning could only watch. Every act is a settlement from outside, fenced by the
version it saw: what a worker did meanwhile is never overwritten.
"""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from treadle.admin import acts, stored_values
from treadle.admin.explain import explain, limits_within, made_by
from treadle.admin.known_names import Names, near, warn
from treadle.admin.moved_acts import Stays
from treadle.admin.moved_looks import Moved
from treadle.core import defaults, ids
from treadle.core.job import Job
from treadle.core.model import Page, Query, Record, State, Stats
from treadle.core.must_await import Awaited
from treadle.durable.checkpoints import check_name
from treadle.errors import BadArgument, BadOption, Stale, TooLarge, UnknownJob
from treadle.policy.retry import read_policy
from treadle.producer.client import Client
from treadle.serialization import call_codec
from treadle.storage.contract import Storage, confined
from treadle.storage.row_rules import within as in_reach
from treadle.storage.transfer import mark_of
from treadle.tasks.task import Task
from treadle.tasks.when import HasId
from treadle.workflow import signals

Filter = Any
Told = Callable[[int], object]
RUNS_READ = 1_000  # running jobs among which `explain` looks for the parent of a job
UNFINISHED = (State.WAITING, State.READY, State.RUNNING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


def id_of(job: HasId | str) -> str:
    return job if isinstance(job, str) else job.id


class Jobs(Awaited, Stays, call="app.jobs", sync="app.sync.jobs.{name}(...)"):
    """Jobs of any state, by id or by filter.

    After a move the old storage still answers looks, with rows that no longer change and a warning (OldRows); acts, and
    waiting for a result, raise StorageMoved.

    Filters: state (a State, its name, or several), task, queue, workflow (id of its first job), parent, label, ids,
    before (an aware moment: created before it).
    """

    looks = frozenset({"get", "handle", "list", "position", "explain", "signals_of", "signal"})  # `signal` stores a row

    def __init__(
        self,
        client: Client,
        storage: Callable[[], Awaitable[Storage]],
        tasks: Mapping[str, Task[..., Any, Any]],
        now: Callable[[], float],
        names: Names,
        moved: Moved,
        most: int = defaults.MAX_STEP,
    ) -> None:
        self._names, self._moved = names, moved
        self._client, self._storage, self._tasks, self._now, self._most = client, storage, tasks, now, most
        self._acts, self._reach = acts.Acts(client, storage), tuple[str, ...]()

    def within(self, queues: tuple[str, ...]) -> Jobs:
        """The same for a caller with a right to jobs of these queues only; (): of all. Other jobs are unknown when they
        are named by id, and acts leave them alone, also those that came of one of these. Lists must name a queue."""
        if not queues:
            return self
        found = copy.copy(self)
        found._acts, found._reach = acts.Acts(self._client, self._storage, queues), queues
        return found

    # --- looking

    async def get(self, job: HasId | str) -> Record:
        """The row. Raises UnknownJob; StorageMoved for a job that is unknown because it lives elsewhere now."""
        [found] = await self._client.get([id_of(job)])
        row = self._visible(found)
        if row is None:
            raise UnknownJob(id_of(job))
        await self._moved.looked("app.jobs.get")
        return row

    async def handle(self, job: HasId | str) -> Job[Any, Any]:
        """A Job to wait for, from any process: `await (await app.jobs.handle(id)).result()`. Raises UnknownJob."""
        return self.job_of(await self.get(job))

    def job_of(self, row: Record) -> Job[Any, Any]:
        return Job(row.job.id, row.job.task, self._client, None)

    def arguments(self, row: Record) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the job was called with. Without the task's code here these are plain values, and a payload that is no
        call is the only argument. Raises BadArgument where the task is here and does not take them."""
        task = self._tasks.get(row.job.task)
        if task is not None and not read_policy(row.job.retry).pass_result:
            try:
                return task.signature.decode_call(row.job.payload)
            except BadArgument as error:
                error.permanent = False  # the job that asks is another one
                raise
        return stored_values.arguments(row.job.payload)

    async def list(
        self,
        /,
        *,
        cursor: str | None = None,
        limit: int = 50,
        count: bool = False,
        order: Literal["newest", "oldest", "ended", "line"] = "newest",
        **filters: Filter,
    ) -> Page:
        """One page of rows; `page.cursor` goes on with the next. Raises BadOption for a filter that does not exist.
        Warns (UnknownName) if nothing fits and nothing uses the queue, the task or the label of the filter."""
        if not 0 <= limit <= 10_000:
            raise BadOption("limit", f"expected 0 to 10,000, found {limit!r}")
        query = query_of(filters, cursor=cursor, limit=limit, count=count, order=order)
        page = await (await self._storage()).find(query)
        await self._moved.looked("app.jobs.list")
        if not page.records and cursor is None and (limit or page.total == 0):
            await self._names.nothing_found(query.queue, query.task, query.label)
        return page

    async def iterate(self, /, **filters: Filter) -> AsyncIterator[Record]:
        """Every row that matches, page by page, oldest first."""
        cursor: str | None = None
        while True:
            page = await self.list(cursor=cursor, limit=500, order="oldest", **filters)
            for row in page.records:
                yield row
            cursor = page.cursor
            if cursor is None:
                return

    async def position(self, job: HasId | str) -> int | None:
        """How many jobs stand before it in its queue's line; None if it is not in line. Raises UnknownJob."""
        row = await self.get(job)
        if row.place is None:
            return None
        # With the queue: over HTTP, a token that is bound to queues must name one.
        query = Query(queue=row.job.queue, order="line", ahead_of=row.job.id, limit=0, count=True)
        page = await (await self._storage()).find(query)
        return page.total

    async def explain(self, job: HasId | str) -> str:
        """In one sentence: why it is not running, or what became of it. Raises UnknownJob.

        Where the jobs live elsewhere since a move, it says so.
        """
        row = await self.get(job)
        storage = await self._storage()
        mark = await mark_of(storage)
        if mark is not None and mark.role == "gone":
            return f"Its storage was moved to {mark.other}: look there. Its row here is old and says {row.state}."
        ups = [self._visible(up) for up in await storage.get(row.after)] if row.state is State.WAITING else []
        ahead = await self.position(row.job.id) if row.place is not None else None
        stats = Stats()  # which count every row there is, so only where the sentence needs them
        if row.state is State.RUNNING or row.place is not None:
            stats = await storage.stats()
        elif row.state is State.READY and row.parked is not None:
            stats = Stats(limits=await storage.limits())
        parent = None
        if row.state is State.READY and ids.stem(row.job.id) is not None:  # a run made it, which may hold its slot
            queue = row.job.queue if confined(storage) else None  # a bound token must name one
            running = await storage.find(Query(state=(State.RUNNING,), queue=queue, limit=RUNS_READ))
            parent = made_by([each for each in running.records if self._visible(each)], row.job.id)
        stats = limits_within(stats, self._reach)
        return explain(row, dict(zip(row.after, ups, strict=False)), ahead, stats, self._now(), parent)

    def _visible(self, row: Record | None) -> Record | None:
        return row if row is not None and in_reach(self._reach, row.job.queue) else None

    # --- acting

    async def cancel(
        self, /, job: HasId | str | None = None, *, tree: bool = True, progress: Told | None = None, **filters: Filter
    ) -> int:
        """Cancel a job (its children too, unless tree=False), or all unfinished ones a filter finds. Answers how many
        jobs this call cancelled.

        Row, key and slot are free at once; a running function is told at once where a wake-up arrives, else at its
        next heartbeat. Of many, groups are cancelled one after the other, and `progress` is called after each with the
        number of jobs looked at; interrupted, it may be called again. Raises UnknownJob.
        """
        if job is None and filters and not filters.get("ids"):
            filters.setdefault("state", UNFINISHED)
        done = 0
        async for rows in self._chosen(job, filters, lambda row: not row.state.final or job is not None, progress):
            done += await self._acts.cancel(rows, tree)
        return done

    async def retry(self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter) -> int:
        """Reopen failed or cancelled jobs: each, what it doomed, and the ancestors that ended because of it. Answers
        how many jobs this call reopened, without those that came along.

        Of a job that failed because of its children those are reopened that did, and it waits for them again.
        Their tries count from 0 again. Raises UnknownJob; Stale for a job that has not ended or succeeded; KeyHeld if
        an unfinished job holds the key meanwhile. By filter, those that cannot be reopened are passed over.
        """
        if job is None and filters:
            filters.setdefault("state", (State.FAILED,))
        done = 0
        async for rows in self._chosen(job, filters, _reopens, progress):
            done += await self._acts.reopen(rows, raising=job is not None)
        if job is not None and not done:
            await self._refuse(job, _reopens, "only failed and cancelled jobs are reopened")
        return done

    async def signals_of(self, job: HasId | str) -> Sequence[str]:
        """The names of the signals that a job waits for at the moment. Raises UnknownJob."""
        return await self._signals_of(await self.get(job))

    async def _signals_of(self, row: Record) -> Sequence[str]:
        if row.state is not State.WAITING or not row.after:
            return []
        ups = await (await self._storage()).get(row.after)
        return [name for up in ups if up and not up.state.final and (name := signals.signal_name(up)) is not None]

    async def signal(self, job: HasId | str, name: str, value: object = None) -> None:
        """Give a job the value its `current().wait_for(name)` waits for; it may come before the job does. Stored when
        this returns.

        Raises UnknownJob; Stale for a job that has ended; Signalled for the second one of a name; ForeignRow if another
        caller has stored the signal's row; BadStep, BadOption for a name or a value that cannot be stored. Warns
        (UnknownName) if the job waits for other signals.
        """
        check_name(name)
        row = await self.get(job)
        if row.state.final or row.ran:
            how = str(row.state) if row.state.final else "waiting for its children"
            raise Stale(row.job.id, f"{how}: nobody waits for {name!r} any more")
        try:
            text = call_codec.encode_any(value)
        except call_codec.Unstorable as error:
            raise BadOption("signal", f"{name!r}: {error}") from None
        if (size := len(text.encode())) > self._most:
            raise TooLarge(f"the value of the signal {name!r}", size, self._most)
        waits = await self._signals_of(row)
        await signals.give(await self._storage(), row, name, text, f'"{os.urandom(8).hex()}"', self._reach)
        if waits and name not in waits:
            named = ", ".join(map(repr, waits))
            warn(f"job {row.job.id} waits for the signal {named}, not for {name!r}{near(name, waits)}")

    async def run_now(
        self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter
    ) -> int:
        """Bring scheduled jobs (and those waiting for their next try) into line at once. Answers how many jobs those
        were.

        Raises UnknownJob; Stale for a job that is not ready.
        """
        if job is None and filters:
            filters.setdefault("state", (State.READY,))
        return await self._many(
            job, filters, acts.at_once, lambda row: row.state is State.READY, "only ready jobs can be run now", progress
        )

    async def delete(
        self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter
    ) -> int:
        """Let ended jobs go: their rows are pruned within a minute or so, unless an unfinished job needs them. Answers
        how many jobs this call let go.

        Raises UnknownJob; Stale for a job that has not ended.
        """
        if job is None and filters and not filters.get("ids"):
            filters.setdefault("state", ENDED)
        return await self._many(job, filters, acts.let_go, lambda row: row.state.final, "cancel it first", progress)

    async def _many(
        self,
        job: HasId | str | None,
        filters: dict[str, Filter],
        act: acts.Chosen,
        fits: Callable[[Record], bool],
        otherwise: str,
        progress: Told | None,
    ) -> int:
        done = 0
        async for rows in self._chosen(job, filters, fits, progress):
            done += len(await self._acts.settle(rows, act, raising=job is not None))
        if job is not None and not done:
            await self._refuse(job, fits, otherwise)
        return done

    async def _refuse(self, job: HasId | str, fits: Callable[[Record], bool], otherwise: str) -> None:
        """Raise Stale if the act does not fit this job."""
        row = await self.get(job)
        if not fits(row):
            raise Stale(row.job.id, f"{row.state}: {otherwise}")

    async def _chosen(
        self,
        job: HasId | str | None,
        filters: dict[str, Filter],
        fits: Callable[[Record], bool],
        progress: Told | None = None,
    ) -> AsyncIterator[Sequence[Record]]:
        """The job, or what the filters find, a group after the other."""
        if (job is None) == (not filters):
            raise BadOption("job", "give a job or an id, or else at least one filter")
        if job is not None:
            yield [row for row in [await self.get(job)] if fits(row)]
            return
        looked, cursor = 0, None
        while True:
            page = await self.list(cursor=cursor, limit=acts.GROUP, order="oldest", **filters)
            yield [row for row in page.records if row.job.task and fits(row)]
            looked, cursor = looked + len(page.records), page.cursor
            if progress is not None:
                progress(looked)
            if cursor is None:
                return


def _reopens(row: Record) -> bool:
    return row.state in (State.FAILED, State.CANCELLED)


def query_of(filters: dict[str, Filter], **rest: Any) -> Query:
    """Filters as a user writes them, as a Query. Raises BadOption."""
    known = {"state", "task", "queue", "workflow", "parent", "label", "ids", "before"}
    for name in filters:
        if name not in known:
            like = near(name, known)
            raise BadOption(name, f"there is no such filter{like}; there are {', '.join(sorted(known))}")
    before = filters.get("before")
    if before is not None and (not isinstance(before, datetime) or before.tzinfo is None):
        raise BadOption("before", f"expected a moment with a zone, found {before!r}")
    for name in ("queue", "label"):
        if filters.get(name) is not None and not isinstance(filters[name], str):
            raise BadOption(name, f"expected a text (a label of a mapping is 'key=value'), found {filters[name]!r}")
    task = filters.get("task")
    return Query(
        state=_states(filters.get("state")),
        task=task if task is None or isinstance(task, str) else task.name,
        queue=filters.get("queue"),
        root=None if filters.get("workflow") is None else id_of(filters["workflow"]),
        parent=None if filters.get("parent") is None else id_of(filters["parent"]),
        label=filters.get("label"),
        ids=tuple(map(id_of, filters.get("ids") or ())),
        before=None if before is None else before.timestamp(),
        **rest,
    )


def _states(value: Any) -> tuple[State, ...]:
    if value is None:
        return ()
    found: Iterable[Any] = [value] if isinstance(value, str) else value
    try:
        return tuple(State(each) for each in found)
    except ValueError:
        raise BadOption("state", f"expected of {', '.join(State)}, found {value!r}") from None
