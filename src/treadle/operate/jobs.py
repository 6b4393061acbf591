"""`app.jobs`: looking at jobs and acting on them, one by one or by filter.

Without it a person at three in the morning could only watch. Every act is a settlement from outside, fenced by the
version it saw: what a worker did meanwhile is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec.structs import replace

from treadle import codec, defaults, promises
from treadle.client import Client
from treadle.compose.fold import causes, fatal
from treadle.compose.plan import plan_of
from treadle.ending import rows_of
from treadle.errors import BadOption, JobUnknown, KeyHeld, Stale, TooLarge, TreadleError
from treadle.job import Job
from treadle.memo import check_name
from treadle.model import ASKED, CHILDREN, Outcome, Page, Query, Record, State
from treadle.operate.explain import explain
from treadle.options import HasId
from treadle.retry import read_policy
from treadle.storage.contract import Storage
from treadle.task import Task

Filter = Any
TRIES = 5  # a job that moves on between look and act is looked at again this often


def id_of(job: HasId | str) -> str:
    return job if isinstance(job, str) else job.id


class Jobs:
    """Jobs of any state, by id or by filter.

    Filters: state (a State, its name, or several), task, queue, workflow (id of its first job), parent, label, ids,
    before (an aware moment: created before it).
    """

    def __init__(
        self, client: Client, storage: Callable[[], Awaitable[Storage]], tasks: Mapping[str, Task[..., Any, Any]],
        now: Callable[[], float], most: int = defaults.MAX_STEP,
    ) -> None:  # fmt: skip
        self._client, self._storage, self._tasks, self._now, self._most = client, storage, tasks, now, most

    # --- looking

    async def get(self, job: HasId | str) -> Record:
        """The row. Raises JobUnknown."""
        [row] = await self._client.get([id_of(job)])
        if row is None:
            raise JobUnknown(id_of(job))
        return row

    async def handle(self, job: HasId | str) -> Job[Any, Any]:
        """A Job to wait for, from any process: `await (await app.jobs.handle(id)).result()`. Raises JobUnknown."""
        return self.job_of(await self.get(job))

    def job_of(self, row: Record) -> Job[Any, Any]:
        return Job(row.job.id, row.job.task, self._client, None)

    def arguments(self, row: Record) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the job was called with; without the task's code here, as plain values."""
        task = self._tasks.get(row.job.task)
        if task is not None and not read_policy(row.job.retry).pass_result:
            return task.signature.decode_call(row.job.payload)
        found: Any = codec.decode_any(row.job.payload)
        if isinstance(found, list):
            return tuple(found), {}
        return tuple(found.get("args", ())), dict(found.get("kwargs", {}))

    async def list(
        self, *, cursor: str | None = None, limit: int = 50, count: bool = False,
        order: Literal["newest", "oldest", "ended", "line"] = "newest", **filters: Filter,
    ) -> Page:  # fmt: skip
        """One page of rows; `page.cursor` goes on with the next. Raises BadOption for a filter that does not exist."""
        if not 0 <= limit <= 10_000:
            raise BadOption("limit", f"expected 0 to 10,000, found {limit!r}")
        query = query_of(filters, cursor=cursor, limit=limit, count=count, order=order)
        return await (await self._storage()).find(query)

    async def iterate(self, **filters: Filter) -> AsyncIterator[Record]:
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
        """How many jobs stand before it in its queue's line; None if it is not in line. Raises JobUnknown."""
        row = await self.get(job)
        if row.place is None:
            return None
        page = await (await self._storage()).find(Query(order="line", ahead_of=row.job.id, limit=0, count=True))
        return page.total

    async def explain(self, job: HasId | str) -> str:
        """In one sentence: why it is not running, or what became of it. Raises JobUnknown."""
        row = await self.get(job)
        storage = await self._storage()
        ups = await storage.get(row.after) if row.state is State.WAITING else []
        ahead = await self.position(row.job.id) if row.place is not None else None
        return explain(row, dict(zip(row.after, ups, strict=False)), ahead, await storage.stats(), self._now())

    # --- acting

    async def cancel(self, job: HasId | str | None = None, *, tree: bool = True, **filters: Filter) -> int:
        """Cancel a job (its children too, unless tree=False), or all unfinished ones a filter finds. Answers how many.

        Row, key and slot are free at once; a running function is told at once where a wake-up arrives, else at its
        next heartbeat. Raises JobUnknown.
        """
        rows = await self._chosen(job, filters, lambda row: not row.state.final or (tree and job is not None))
        done = 0
        for row in rows:
            cancelled = await self._cancel_one(row)
            done += cancelled + (await self._cancel_below(row) if tree else 0)
            if cancelled and row.job.root is None:
                self._client.tell("workflow.ended", replace(row, state=State.CANCELLED, reason=ASKED))
        return done

    async def _cancel_below(self, row: Record) -> int:
        """What came of a job: after it, which would otherwise come in line and end as failed because of them."""
        done, look = 0, [row] if row.ran else []
        while look:
            async for child in self.iterate(parent=look.pop().job.id):
                if not child.job.task:
                    continue  # a signal's row, which goes with its job
                done += await self._cancel_one(child)
                look += [child] if child.ran else []
        return done

    async def _cancel_one(self, row: Record) -> int:
        if row.state.final:
            return 0
        done = await self._act(row, _cancelled)
        if done and row.state is State.WAITING:
            # Not before it: the job would come in line, and wait for the signal anew. Nor left: nobody else ends them.
            async for child in self.iterate(parent=row.job.id):
                if promises.signal_name(child) is not None and not child.state.final:
                    await self._act(child, _cancelled)
        return done

    async def retry(self, job: HasId | str | None = None, **filters: Filter) -> int:
        """Reopen failed or cancelled jobs: each, what it doomed, and the ancestors that ended because of it.

        Of a job that failed because of its children those are reopened that did, and it waits for them again.
        Their tries count from 0 again. Raises JobUnknown; Stale for a job that has not ended or succeeded; KeyHeld if
        an unfinished job holds the key meanwhile. By filter, those that cannot be reopened are passed over.
        """
        if job is None and filters:
            filters.setdefault("state", ("failed",))
        rows = await self._chosen(job, filters, lambda row: row.state in (State.FAILED, State.CANCELLED))
        if job is not None and not rows:
            row = await self.get(job)
            raise Stale(row.job.id, f"{row.state}: only failed and cancelled jobs are reopened")
        return sum([await self._reopen(row, raising=job is not None) for row in rows])

    async def _reopen(self, row: Record, raising: bool) -> int:
        """Reopen a job; of one that failed because of its children, those of them that did, and theirs."""
        done, look, seen = 0, [row], {row.job.id}
        while look:
            one = look.pop()
            failed: list[Record] = []
            if one.reason == CHILDREN:
                children = await rows_of(self._client.get, one.after)
                failed = [child for child in causes(fatal(children, plan_of(one))) if child.state.final]
            below = [child for child in failed if child.job.id not in seen]
            seen.update(child.job.id for child in below)
            look += below
            if not failed:
                done += await self._act(one, _reopened, raising)
        return done

    async def signal(self, job: HasId | str, name: str, value: object = None) -> None:
        """Give a job the value its `current().wait_for(name)` waits for; it may come before the job does. Stored when
        this returns.

        Raises JobUnknown; Stale for a job that has ended; Signalled for the second one of a name; BadStep, BadOption
        for a name or a value that cannot be stored.
        """
        check_name(name)
        row = await self.get(job)
        if row.state.final or row.ran:
            how = str(row.state) if row.state.final else "waiting for its children"
            raise Stale(row.job.id, f"{how}: nobody waits for {name!r} any more")
        try:
            text = codec.encode_any(value)
        except codec.Unstorable as error:
            raise BadOption("signal", f"{name!r}: {error}") from None
        if (size := len(text.encode())) > self._most:
            raise TooLarge(f"the value of the signal {name!r}", size, self._most)
        await promises.give(await self._storage(), row, name, text, f'"{os.urandom(8).hex()}"')

    async def run_now(self, job: HasId | str | None = None, **filters: Filter) -> int:
        """Bring scheduled jobs (and those waiting for their next try) into line at once.

        Raises JobUnknown; Stale for a job that is not ready.
        """
        if job is None and filters:
            filters.setdefault("state", ("ready",))
        rows = await self._chosen(job, filters, lambda row: row.state is State.READY)
        if job is not None and not rows:
            row = await self.get(job)
            raise Stale(row.job.id, f"{row.state}: only ready jobs can be run now")
        return sum([await self._act(row, _now) for row in rows if row.place is None and row.parked is None])

    async def delete(self, job: HasId | str | None = None, **filters: Filter) -> int:
        """Let ended jobs go: their rows are pruned within a minute or so, unless an unfinished job needs them.

        Raises JobUnknown; Stale for a job that has not ended.
        """
        rows = await self._chosen(job, filters, lambda row: row.state.final)
        if job is not None and not rows:
            row = await self.get(job)
            raise Stale(row.job.id, f"{row.state}: cancel it first")
        return sum([await self._act(row, _deleted) for row in rows])

    async def _chosen(
        self, job: HasId | str | None, filters: dict[str, Filter], fits: Callable[[Record], bool]
    ) -> Sequence[Record]:
        if (job is None) == (not filters):
            raise BadOption("job", "give a job or an id, or else at least one filter")
        if job is not None:
            return [row for row in [await self.get(job)] if fits(row)]
        return [row async for row in self.iterate(**filters) if row.job.task and fits(row)]

    async def _act(self, row: Record, outcome: Callable[[Record], Outcome | None], raising: bool = False) -> int:
        """Settle from outside. A job that moved on meanwhile is looked at again; one that no longer fits is left."""
        storage = await self._storage()
        for _ in range(TRIES):
            out = outcome(row)
            if out is None:
                return 0
            [answer] = await storage.settle([out])
            if answer.status == "applied":
                if out.state is State.CANCELLED:
                    self._client.tell("cancelled", row, out.error)
                return 1
            if answer.status == "refused":
                if raising:
                    raise _refused(row, answer.reason or "refused")
                return 0
            [again] = await storage.get([row.job.id])
            if again is None:
                return 0
            row = again
        return 0


def query_of(filters: dict[str, Filter], **rest: Any) -> Query:
    """Filters as a user writes them, as a Query. Raises BadOption."""
    known = {"state", "task", "queue", "workflow", "parent", "label", "ids", "before"}
    for name in filters:
        if name not in known:
            raise BadOption(name, f"there is no such filter; there are {', '.join(sorted(known))}")
    before = filters.get("before")
    if before is not None and (not isinstance(before, datetime) or before.tzinfo is None):
        raise BadOption("before", f"expected a moment with a zone, found {before!r}")
    for name in ("queue", "label"):
        if filters.get(name) is not None and not isinstance(filters[name], str):
            raise BadOption(name, f"expected a text (a label of a mapping is 'key=value'), found {filters[name]!r}")
    task = filters.get("task")
    return Query(
        state=_states(filters.get("state")), task=task if task is None or isinstance(task, str) else task.name,
        queue=filters.get("queue"), root=None if filters.get("workflow") is None else id_of(filters["workflow"]),
        parent=None if filters.get("parent") is None else id_of(filters["parent"]), label=filters.get("label"),
        ids=tuple(map(id_of, filters.get("ids") or ())), before=None if before is None else before.timestamp(), **rest,
    )  # fmt: skip


def _states(value: Any) -> tuple[State, ...]:
    if value is None:
        return ()
    found: Iterable[Any] = [value] if isinstance(value, str) else value
    try:
        return tuple(State(each) for each in found)
    except ValueError:
        raise BadOption("state", f"expected of {', '.join(State)}, found {value!r}") from None


def _refused(row: Record, reason: str) -> TreadleError:
    """Reopening is refused for one reason only, and the storage can say it in words only."""
    _, held, holder = reason.rpartition(" is held by job ")
    if not held:
        return Stale(row.job.id, reason)
    return KeyHeld((row.job.key or "").partition(" ")[2], holder)


def _cancelled(row: Record) -> Outcome | None:
    if row.state.final:
        return None
    return Outcome(id=row.job.id, version=row.version, state=State.CANCELLED, attempt=row.attempt, reason=ASKED,
                   error="cancelled by hand")  # fmt: skip


def _reopened(row: Record) -> Outcome | None:
    if row.state not in (State.FAILED, State.CANCELLED):
        return None
    return Outcome(id=row.job.id, version=row.version, state=State.READY)


def _now(row: Record) -> Outcome | None:
    if row.state is not State.READY or row.place is not None:
        return None
    return Outcome(id=row.job.id, version=row.version, state=State.READY, attempt=row.attempt, error=row.error)


def _deleted(row: Record) -> Outcome | None:
    if not row.state.final:
        return None
    return Outcome(id=row.job.id, version=row.version, state=row.state, keep=0.0)
