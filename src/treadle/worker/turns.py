"""Reserves resources for a task that has not fitted for `capacity.TURN` seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from treadle.core.model import Record
from treadle.core.query_model import Query
from treadle.storage.contract import Storage
from treadle.storage.row_rules import order
from treadle.worker.capacity import Capacity, uses_of

EVERY: Final = 1.0  # s between two looks while a task waits


class Turns:
    """The loop of one worker with resources. It reads only while a task has not fitted for `capacity.TURN` s: the first
    queued job of each task that uses resources, in each queue of the worker."""

    def __init__(
        self,
        capacity: Capacity,
        storage: Storage,
        queues: Collection[str],
        answered: Callable[[str], None] = lambda loop: None,
    ) -> None:
        self._capacity, self._storage, self._queues, self._answered = capacity, storage, tuple(queues), answered

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """Reserve for the task that has waited longest, if its first job is the next one that uses its resources."""
        overdue = self._capacity.overdue()
        heads = await self._heads() if overdue else []
        self._answered("turns")
        for name in overdue:
            own = [row for row in heads if row.job.task == name]
            if not own:
                self._capacity.waits.pop(name, None)  # no job of it is queued: its wait begins anew
            elif any(self._is_next(row, heads) for row in own):
                self._capacity.reserve(name)
                return

    def _is_next(self, row: Record, heads: list[Record]) -> bool:
        """Whether no job of its queue that uses one of its resources is ahead of it. Such a job goes first, by its
        priority or because it came earlier."""
        uses = {task.name: dict(uses_of(task)) for task in self._capacity.heavy.values()}
        own = uses.get(row.job.task, {})
        return not any(
            other.job.queue == row.job.queue and order(other) < order(row) and own.keys() & uses.get(other.job.task, {})
            for other in heads
        )

    async def _heads(self) -> list[Record]:
        """The first queued job of each task that uses resources, by queue."""
        scan, found = self._storage.capabilities.scan, list[Record]()
        for task in self._capacity.heavy.values():
            for queue in self._queues:
                query = Query(task=task.name, queue=queue, ready="queued", order="queue", limit=1, scan=scan)
                found += (await self._storage.find(query)).records
        return found
