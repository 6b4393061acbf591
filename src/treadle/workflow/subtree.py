"""Cancels jobs with their children, for workflows that end early."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from treadle.core.model import ASKED, Outcome, Record, State
from treadle.policy.cleanups import cancelled_with_cleanup
from treadle.storage.contract import Storage
from treadle.workflow.cleaning import clean_late

Get = Callable[[Sequence[str]], Awaitable[Sequence[Record | None]]]

GROUP: Final = 500  # rows of one call
TRIES: Final = 5  # for a row that changes meanwhile; then it is left as it is


async def cancel_subtree(storage: Storage, rows: Sequence[Record], error: str) -> None:
    """Cancel these jobs, and then their children: a job whose children were cancelled first would fail because of them.
    Jobs that end meanwhile are left as they are, and so are jobs of another parent that were returned for a key."""
    queue = [row for row in rows if not row.state.final]
    while queue:
        group, queue = queue[:GROUP], queue[GROUP:]
        above = await _cancelled(storage, group, error)
        parents = {row.job.id: row for row in above}
        below = list(dict.fromkeys(up for row in above if may_have_children(row) for up in row.after))
        for start in range(0, len(below), GROUP):
            children = await storage.get(below[start : start + GROUP])
            queue += [row for row in children if row is not None and not row.state.final and is_below(row, parents)]


def may_have_children(row: Record) -> bool:
    """Whether jobs that this job waits for, or has waited for, may be its children."""
    return row.function_done or row.started_at is not None


def is_below(row: Record, parents: Mapping[str, Record]) -> bool:
    """Whether this row, for which one of these jobs waits or has waited, ends with that job. A job whose function has
    continued since then has children of which only its history says whether they do: its cleanup ends them."""
    parent = parents.get(row.job.parent or "")
    return parent is not None and (not row.job.task or parent.function_done or parent.state is State.WAITING)


async def _cancelled(storage: Storage, rows: Sequence[Record], error: str) -> list[Record]:
    """Cancel these jobs, with their cleanups -> the rows as they were then."""
    before: list[Record] = []
    for _ in range(TRIES):
        answers = await storage.settle([_cancellation(row, error) for row in rows])
        before += [row for row, answer in zip(rows, answers, strict=True) if answer.status == "applied"]
        changed = [row.job.id for row, answer in zip(rows, answers, strict=True) if answer.status != "applied"]
        if not changed:
            break
        rows = [row for row in await storage.get(changed) if row is not None and not row.state.final]
    await clean_late(storage, functools.partial(rows_of, storage.get), before)
    return before


def _cancellation(row: Record, error: str) -> Outcome:
    outcome = Outcome(
        id=row.job.id,
        version=row.version,
        state=State.CANCELLED,
        attempt=row.attempt,
        reason=ASKED,
        result=row.result,
        error=error,
    )
    return cancelled_with_cleanup(row, outcome)


async def rows_of(get: Get, ids: Sequence[str]) -> list[Record]:
    """These rows, in order and without duplicates; unknown ids are left out."""
    rows: list[Record] = []
    ids = list(dict.fromkeys(ids))
    for start in range(0, len(ids), GROUP):
        rows += [row for row in await get(ids[start : start + GROUP]) if row is not None]
    return rows
