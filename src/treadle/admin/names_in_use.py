"""Reads which queues and tasks a storage uses, at a cost that does not depend on how many jobs it has."""

from __future__ import annotations

from typing import Final

from treadle.core.model import State
from treadle.core.query_model import Count, Order, Query, Stats
from treadle.storage.contract import Storage

NEWEST: Final = 1_000  # newest jobs whose tasks and queues are read
SEARCHED: Final = 10_000  # newest jobs among which one name is searched
LOOKS: Final[tuple[tuple[Order, int], ...]] = (("queue", 1), ("newest", SEARCHED))


async def read(storage: Storage) -> Stats:
    """The queues with unfinished or failed jobs, the queues and tasks of the newest jobs, the workers and the limits.

    Each count stands for a name; its numbers mean nothing. A name that only older jobs have is missing: see `occurs`.
    """
    seen = await storage.glance(NEWEST)
    rows = [
        row
        for queue in storage.capabilities.queues or (None,)  # a bound token must name one
        for row in (await storage.find(Query(queue=queue, limit=NEWEST, scan=NEWEST))).records
    ]
    names = {(row.job.queue, row.job.task) for row in rows} | {(queue.name, "") for queue in seen.queues}
    counts = tuple(Count(queue=queue, task=task, state=State.READY, jobs=1) for queue, task in sorted(names))
    return Stats(counts=counts, workers=seen.workers, limits=seen.limits)


async def occurs(storage: Storage, kind: str, name: str) -> bool:
    """Whether a queued job, or one of the newest jobs, has this queue or task."""
    if kind == "task" and not storage.capabilities.queues:
        return bool((await storage.find(Query(task=name, limit=1, scan=SEARCHED))).records)
    if kind != "queue":
        return False
    for order, scan in LOOKS:
        if (await storage.find(Query(queue=name, limit=1, order=order, scan=scan))).records:
            return True
    return False
