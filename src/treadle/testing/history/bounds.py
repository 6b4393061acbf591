"""The checker's rules about numbers of waiting jobs: the bounds of queues, and the kept counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from treadle.core.model import SHED, Record
from treadle.core.query_model import CountDrift
from treadle.storage import Bounds, bound_of, bounds_in, needs_room
from treadle.testing.history.evidence import TOLERANCE, Evidence, Violation, first_excess


def check(it: Evidence, drifts: Sequence[CountDrift]) -> Iterator[Violation]:
    """Apply all rules of this module."""
    yield from counts(it, drifts)
    changed = {entry.name for entry in it.entries if entry.what == "act" and entry.facts.get("limit")}
    bounds = {name: rule for name, rule in bounds_in(it.limits).items() if name not in changed}
    if bounds and "queue" not in changed:
        yield from shed_jobs(it, bounds, changed)
        yield from bounded(it, bounds)


def counts(it: Evidence, drifts: Sequence[CountDrift]) -> Iterator[Violation]:
    """The counts that the storage kept equal its rows."""
    for drift in drifts:
        group = f"{drift.kind} jobs of {drift.task!r} in queue {drift.queue!r}"
        yield it.violation("counts", f"the storage kept {drift.kept} {group}, its rows are {drift.counted}")


def bounded(it: Evidence, bounds: Bounds) -> Iterator[Violation]:
    """No enqueue raises the number of waiting jobs of a queue above its bound.

    Only jobs that needed room are counted, from the answer to their enqueue to their first claim. When the last of
    these jobs was stored, the others were waiting, so there are never more of them than the bound. A queue that had
    jobs before the first claim of all is not judged: the rules that code declares are stored when a worker starts, and
    a queue that is longer by then may stay so.
    """
    if it.steps_of_clock:
        return
    since = min(it.claims.values(), default=0.0) + TOLERANCE
    waits: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    earlier = {row.job.queue for id, row in it.rows.items() if (ask := it.asked.get(id)) is None or ask.at <= since}
    for entry in it.entries:
        row, claimed = it.rows.get(entry.id), it.claims.get((entry.id, 1))
        if entry.what != "stored" or entry.name or row is None or claimed is None or row.reopenings:
            continue
        queue = row.job.queue
        if queue not in earlier and needs_room(row.job) and bound_of(bounds, queue) is not None:
            waits[queue].setdefault(entry.id, (entry.at + TOLERANCE, claimed))
    for queue, jobs in waits.items():
        rule = bound_of(bounds, queue)
        most = (rule and rule.max_waiting) or 0
        periods = sorted((since, until, 1, id) for id, (since, until) in jobs.items() if until > since)
        waiting, ids = first_excess(periods, most)
        if waiting:
            yield it.violation("bound", f"{waiting} jobs of the queue {queue} waited, at most {most} may", *ids)


def shed_jobs(it: Evidence, bounds: Bounds, changed: set[str]) -> Iterator[Violation]:
    """Only a queue whose bound says so sheds jobs, and only those that no worker has claimed."""
    for id, row in it.rows.items():
        queue = f"queue:{row.job.queue}"
        if row.reason != SHED or queue in changed:
            continue
        rule = bound_of(bounds, row.job.queue)
        if rule is None or rule.when_full == "refuse":
            yield it.violation("shed", f"{id} was shed, although its queue sheds no jobs", id)
        elif _claimed(it, row):
            yield it.violation("shed", f"{id} was shed, although a worker had claimed it", id)


def _claimed(it: Evidence, row: Record) -> bool:
    return not row.reopenings and any((row.job.id, version) in it.claims for version in range(1, row.version))
