"""Plans the claims of a worker with resources: the tasks that fit, and how many jobs fit together. See `ClaimPlanner`.

Only dispatcher 0 claims tasks that use resources: two concurrent claims would each fill the same room. A worker without
resources has no `Capacity`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from treadle.core.model import Record
from treadle.core.query_model import Query
from treadle.policy.claim_plan import EVERY, ClaimPlan, ClaimPlanner, Head, Offer, Uses, less
from treadle.storage.contract import Storage
from treadle.storage.row_rules import order
from treadle.tasks.core import BatchCore, TaskCore
from treadle.worker.executors.batches import Batches
from treadle.worker.resource_use import ResourceUse
from treadle.worker.state import WorkerState


class Capacity:
    """One for each start of a worker with resources. Its methods run on the worker's event loop.

    use      the part of its resources that is in use
    batches  the calls of batches that are gathered
    """

    def __init__(self, use: ResourceUse, tasks: Mapping[str, TaskCore], state: WorkerState, batches: Batches) -> None:
        self.use, self._tasks, self._state, self._batches = use, tasks, state, batches
        self.planner = ClaimPlanner(state.loop.time)
        self.heavy: dict[str, TaskCore] = {}  # the claimable tasks that use resources

    def claims(self, names: Iterable[str]) -> None:
        """These are the tasks that the worker claims now."""
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        self.heavy = {task.name: task for task in tasks if uses_of(task)}
        self.planner.claims(self.heavy)

    @property
    def reserved(self) -> str:
        """The task for whose next job it keeps resources free, or ""."""
        return self.planner.reserved

    def plan(self, limit: int, number: int) -> ClaimPlan:
        """The next claim of a dispatcher that may bring `limit` jobs."""
        plan = self.planner.plan_beside if number else self.planner.plan
        return plan(limit, self._free(), {name: self._offer(task) for name, task in self.heavy.items()})

    def _offer(self, task: TaskCore) -> Offer:
        uses = uses_of(task)
        if not isinstance(task, BatchCore):
            return Offer(uses, uses)
        if task.by is not None:
            return Offer(uses, uses, room=self._batches.room(task))
        gathered = self._batches.calls(task) or self._arriving(task)
        return Offer(uses, () if gathered else uses, one_call=True)

    def answered(self, plan: ClaimPlan, records: Sequence[Record]) -> None:
        """Note the jobs that the claim of this plan has returned."""
        self.planner.answered(plan, [record.job.task for record in records])
        if plan.only is not None:
            self._state.wake.set()

    def _free(self) -> dict[str, int]:
        """The free resources, less those that claimed items of batches are going to use."""
        free = self.use.free()
        for task in self.heavy.values():
            if isinstance(task, BatchCore):
                calls, arriving = self._batches.calls(task), self._arriving(task)
                coming = calls + arriving if task.by is not None else max(calls, min(1, arriving))
                free = less(free, tuple((name, amount * coming) for name, amount in uses_of(task)))
        return free

    def _arriving(self, task: TaskCore) -> int:
        """Claimed items that have not joined a call yet."""
        runs = self._state.running.values()
        return sum(1 for run in runs if run.task is task and run.job_run.place is None)

    # --- turns

    def give_turn(self, overdue: Sequence[str], heads: Sequence[Head]) -> None:
        """Keep free what the next job of one of these tasks uses, if it is its turn."""
        if self.planner.give_turn(overdue, heads, {name: uses_of(task) for name, task in self.heavy.items()}):
            self._state.wake.set()


def uses_of(task: TaskCore) -> Uses:
    """The resources of one run of a task, or of one call of a batch."""
    return () if task.needs is None else task.needs.uses


class Turns:
    """The loop of one worker with resources. While some task has not fitted for at least `TURN` s, it reads the
    first queued job of each task that uses resources, in each queue of the worker."""

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
