"""The part of the cleanup of durable jobs that a cancellation or a reopening from outside needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.core.model import OURS, Outcome, Record, State
from treadle.policy.cleanups import UNDONE, cleanup_id, cleanup_of, has_begun, has_steps, is_cleanup, is_stored
from treadle.policy.parts import is_part
from treadle.storage.contract import Storage
from treadle.storage.row_rules import failed_by_child

WHOLE: Final = 20  # rows with all their steps that are in memory at a time

Rows = Callable[[Sequence[str]], Awaitable[list[Record]]]


async def with_steps(rows: Rows, group: Sequence[Record]) -> list[Record]:
    """These rows, read again where only their steps can say whether the job has begun: a row of a page has none."""
    unknown = [row for row in group if row.started_at and not row.function_done and not has_begun(row)]
    again = dict[str, Record]()
    async for row in whole_rows(rows, [row.job.id for row in unknown]):
        first = next((pair for pair in row.checkpoints if not pair[0].startswith(OURS)), None)
        own = tuple([pair for pair in row.checkpoints if pair[0].startswith(OURS)])
        again[row.job.id] = row if first is None else replace(row, checkpoints=(*own, first))  # one step shows it
    return [again.get(row.job.id, row) for row in group]


async def whole_rows(rows: Rows, ids: Sequence[str]) -> AsyncIterator[Record]:
    """These rows with all their steps, of which a few are in memory at a time."""
    for start in range(0, len(ids), WHOLE):
        for row in await rows(ids[start : start + WHOLE]):
            yield row


async def clean_late(storage: Storage, rows: Rows, cancelled: Iterable[Record]) -> None:
    """Store the cleanup jobs of jobs that took their first step after they were read, and before they were cancelled.

    cancelled  the jobs as they were read
    """
    running = [row for row in cancelled if row.state is State.RUNNING and not is_part(row.job)]
    ids = [row.job.id for row in running if not has_begun(row)]
    again = whole_rows(rows, ids)
    late = [cleanup_of(row) async for row in again if row.state is State.CANCELLED and has_steps(row.checkpoints)]
    if late:
        await storage.enqueue(late)


def reopened(row: Record, cleaned: Container[str] = ()) -> Outcome | None:
    """The reopening of a job. One in `cleaned` begins a new round, as its cleanup has undone steps of this one."""
    if row.state not in (State.FAILED, State.CANCELLED):
        return None
    mark = ((UNDONE, str(row.reopenings + 1)),) if row.job.id in cleaned else ()
    return Outcome(id=row.job.id, version=row.version, state=State.READY, checkpoints=mark)


async def after_cleanup(rows: Rows, jobs: Sequence[Record]) -> dict[str, str]:
    """Those of these jobs whose cleanup has taken steps: they begin a new round. With the reason why a job must not be
    reopened: "" if it may."""
    jobs = [row for row in jobs if not is_cleanup(row.job)]
    above = await _ancestors(rows, jobs)
    every = {row.job.id: row for row in (*jobs, *above.values())}
    # A job that was cancelled in the instant of its first step has a cleanup without the mark.
    may_have = [row for row in every.values() if is_stored(row) or row.state is State.CANCELLED]
    ids = [cleanup_id(row.job.id, row.reopenings) for row in may_have]
    cleanups = {row.job.parent: row for row in (await rows(ids) if ids else ())}
    marked: dict[str, str] = {}
    for row in jobs:
        own = cleanups.get(row.job.id)
        if own is not None and (why := _open(own)):
            marked[row.job.id] = why
        elif own is not None and has_steps(own.checkpoints):
            marked[row.job.id] = ""
        up = above.get(row.job.parent or "")
        while up is not None:
            other = cleanups.get(up.job.id)
            if other is not None and (_open(other) or has_steps(other.checkpoints)):
                marked[row.job.id] = "a job that failed because of it was undone, and would run again"
            up = above.get(up.job.parent or "")
    return marked


def _open(cleanup: Record) -> str:
    """Why the job of this cleanup cannot be reopened now; "": it can."""
    if cleanup.state in (State.SUCCEEDED, State.CANCELLED):
        return ""
    if cleanup.state is State.FAILED:
        return "its cleanup has failed; retry that first"
    return "its cleanup has not ended"


async def _ancestors(rows: Rows, jobs: Sequence[Record]) -> dict[str, Record]:
    """The ancestors that failed because of their children, which are reopened with a child."""
    above, level = dict[str, Record](), list(jobs)
    while ids := {row.job.parent for row in level if row.job.parent is not None} - above.keys():
        level = [row for row in await rows(sorted(ids)) if failed_by_child(row)]
        above |= {row.job.id: row for row in level}
    return above
