"""Makes room in bounded queues before new jobs are stored: refuses the call, or sheds queued jobs.

All queues of the call are checked before the first job is shed, because an enqueue is all or nothing (law 1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from treadle.core.errors import QueueFull
from treadle.core.limit_model import Limit
from treadle.core.model import SHED, NewJob, State
from treadle.storage.bounds import LOOK, bound_of, excess, needs_room, shed_words
from treadle.storage.machine.endings import count_endings, end_job
from treadle.storage.machine.keys import holds
from treadle.storage.machine.plan import StorePlan
from treadle.storage.machine.rows import STEP, Rows, Steps
from treadle.storage.row_rules import rank

Shed = list[tuple[str, str]]
"""Ids of jobs to shed, each with the text of its error."""


def make_room(rows: Rows, planned: StorePlan) -> Steps[None]:
    """Raise QueueFull, or shed what must make room for the new jobs of this plan."""
    to_be_shed = to_shed(rows, planned)
    rows.read([id for id, _ in to_be_shed])
    for number, (id, error) in enumerate(to_be_shed, 1):
        end_job(rows, rows.row(id), State.CANCELLED, SHED, error)
        if number % STEP == 0:
            yield from count_endings(rows)
            yield
    yield from count_endings(rows)


def to_shed(rows: Rows, planned: StorePlan) -> Shed:
    """The jobs that must be shed for the new ones. Raises QueueFull."""
    chosen: Shed = []
    for queue, jobs in _by_queue(rows, planned).items():
        rule = bound_of(rows.bounds, queue)
        assert rule is not None
        assert rule.max_waiting is not None
        waiting = rows.waiting(queue)
        count = excess(rule.max_waiting, waiting, len(jobs))
        if count:
            ids = [] if rule.when_full == "refuse" else _fit(rows, rule, queue, count, jobs, _needed(rows, planned))
            if len(ids) < count:
                raise QueueFull(queue, rule.max_waiting, waiting, len(jobs))
            error = shed_words(rule, queue)
            chosen += [(id, error) for id in ids]
    return chosen


def _by_queue(rows: Rows, planned: StorePlan) -> dict[str, list[NewJob]]:
    """The new jobs that need room, by the bounded queues that they need it in, in the order of the call."""
    by_queue: dict[str, list[NewJob]] = {}
    holders: dict[str, NewJob] = {}
    for new in planned.fresh:
        needs = needs_room(new) and bound_of(rows.bounds, new.queue) is not None
        if new.key is not None:
            if needs and new.key_conflict == "replace":
                needs = not _supersedes(rows, new, holders.get(new.key), planned.held)
            holders[new.key] = new
        if needs:
            by_queue.setdefault(new.queue, []).append(new)
    return by_queue


def _supersedes(rows: Rows, new: NewJob, earlier: NewJob | None, held: Mapping[str, str]) -> bool:
    """Whether a new job supersedes a ready job of its queue: The job that a new job supersedes: `earlier` of the call,
    or the stored holder of its key."""
    if earlier is not None:
        return earlier.queue == new.queue and needs_room(earlier)
    row = rows.get(held.get(new.key or "", ""))
    return (
        row is not None
        and row.state is State.READY
        and not row.function_done
        and row.job.queue == new.queue
        and holds(row, rows.now)
    )


def _needed(rows: Rows, planned: StorePlan) -> set[str]:
    """The rows that the call returns, supersedes or waits for."""
    superseded = {planned.held[new.key] for new in planned.fresh if new.key is not None and new.key in planned.held}
    return {*planned.answers.values(), *superseded, *(planned.of(up) for new in planned.naming for up in new.after)}


def _fit(rows: Rows, rule: Limit, queue: str, count: int, new: Sequence[NewJob], needed: Collection[str]) -> list[str]:
    """The ids of the queued jobs to shed, fewer than `count` if there are not enough."""
    lowest, least = rule.when_full == "drop_lowest", min(map(rank, new))
    ids: list[str] = []
    checked = 0
    for id, its_rank, fit in rows.outermost(queue, lowest):
        if id in needed:
            continue
        checked += 1
        if (lowest and its_rank >= least) or checked > count + LOOK:
            break
        if fit:
            ids.append(id)
            if len(ids) == count:
                break
    return ids
