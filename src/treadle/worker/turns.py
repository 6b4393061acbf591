"""Reserves resources for a task that has not fitted for `claim_plan.TURN` seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from treadle.core.query_model import Query
from treadle.policy.claim_plan import EVERY, Head
from treadle.storage.contract import Storage
from treadle.storage.row_rules import order
from treadle.worker.capacity import Capacity


class Turns:
    """The loop of one worker with resources. It reads only while a task has not fitted for `TURN` s: the first
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
        overdue = self._capacity.planner.overdue()
        heads = await self._heads() if overdue else []
        self._answered("turns")
        self._capacity.give_turn(overdue, heads)

    async def _heads(self) -> list[Head]:
        """The first queued job of each task that uses resources, by queue."""
        scan, heads = self._storage.capabilities.scan, list[Head]()
        for task in self._capacity.heavy.values():
            for queue in self._queues:
                query = Query(task=task.name, queue=queue, ready="queued", order="queue", limit=1, scan=scan)
                page = await self._storage.find(query)
                heads += [Head(task.name, queue, order(row)) for row in page.records]
        return heads
