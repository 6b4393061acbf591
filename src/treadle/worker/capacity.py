"""The resources of one worker: what its running jobs use, and what its next claim may bring, see `ClaimPlanner`.

Only dispatcher 0 claims tasks that use resources: two concurrent claims would each fill the same room. A worker without
resources has no `Capacity`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from treadle.core.model import Record
from treadle.policy.claim_plan import ClaimPlan, ClaimPlanner, Head, Offer, Uses, less
from treadle.tasks.core import BatchCore, TaskCore
from treadle.worker.running_job import RunningJob


class Gathered(Protocol):
    """The part of `Batches` that plans need."""

    def room(self, task: BatchCore) -> int: ...
    def calls(self, task: BatchCore) -> int: ...


class Capacity:
    """One for each start of a worker with resources. Its methods run on the worker's event loop.

    running  the jobs that run here
    clock    the loop's time
    wake     wakes the dispatchers
    """

    def __init__(
        self,
        resources: Mapping[str, int],
        tasks: Mapping[str, TaskCore],
        running: Mapping[str, RunningJob],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self.has, self._tasks, self._running = dict(resources), tasks, running
        self.planner, self._wake = ClaimPlanner(clock), wake
        self.used = dict.fromkeys(resources, 0)
        self._batches: Gathered | None = None
        self.heavy: dict[str, TaskCore] = {}  # the claimable tasks that use resources
        self._calls: deque[tuple[Uses, asyncio.Future[None]]] = deque()  # calls of batches that wait for resources

    def follow(self, batches: Gathered) -> None:
        """Count the calls that these batches gather."""
        self._batches = batches

    def claims(self, names: Iterable[str]) -> None:
        """These are the tasks that the worker claims now."""
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        self.heavy = {task.name: task for task in tasks if uses_of(task)}
        self.planner.claims(self.heavy)

    # --- what runs

    def take(self, uses: Uses) -> None:
        """A job or a call begins."""
        for name, amount in uses:
            self.used[name] = self.used.get(name, 0) + amount

    def release(self, uses: Uses) -> None:
        """A job or a call has ended. The calls that wait begin, as far as there is room."""
        for name, amount in uses:
            self.used[name] -= amount
        while self._calls:
            first, begins = self._calls[0]
            if not begins.done():
                if not self._fits(first):
                    break
                self.take(first)
                begins.set_result(None)
            self._calls.popleft()

    async def enter(self, uses: Uses) -> None:
        """Take the resources of one call of a batch; waits while they are in use. Its claims have left room for it,
        unless its items have more keys than were expected."""
        if not self._calls and self._fits(uses):
            self.take(uses)
            return
        begins = asyncio.get_running_loop().create_future()
        self._calls.append((uses, begins))
        try:
            await begins
        except asyncio.CancelledError:
            if begins.done() and not begins.cancelled():
                self.release(uses)
            raise

    def _fits(self, uses: Uses) -> bool:
        return all(self.used.get(name, 0) + amount <= self.has.get(name, 0) for name, amount in uses)

    # --- what the next claim may bring

    @property
    def reserved(self) -> str:
        """The task for whose next job it keeps resources free, or ""."""
        return self.planner.reserved

    def plan(self, limit: int, number: int) -> ClaimPlan:
        """The next claim of a dispatcher that may bring `limit` jobs."""
        plan = self.planner.plan_beside if number else self.planner.plan
        return plan(limit, self._free(), {name: self._offer(task) for name, task in self.heavy.items()})

    def _offer(self, task: TaskCore) -> Offer:
        uses, batches = uses_of(task), self._batches
        if not isinstance(task, BatchCore) or batches is None:
            return Offer(uses, uses, one_call=isinstance(task, BatchCore) and task.by is None)
        if task.by is not None:
            return Offer(uses, uses, room=batches.room(task))
        gathered = batches.calls(task) or self._arriving(task)
        return Offer(uses, () if gathered else uses, one_call=True)

    def answered(self, plan: ClaimPlan, records: Sequence[Record]) -> None:
        """The claim of this plan has brought these jobs."""
        self.planner.answered(plan, [record.job.task for record in records])
        if plan.only is not None:
            self._wake()

    def _free(self) -> dict[str, int]:
        """The free resources, less those that claimed items of batches are going to use."""
        free = {name: has - self.used[name] for name, has in self.has.items()}
        if self._batches is None:
            return free
        for uses, _ in self._calls:
            free = less(free, uses)
        for task in self.heavy.values():
            if isinstance(task, BatchCore):
                calls, arriving = self._batches.calls(task), self._arriving(task)
                coming = calls + arriving if task.by is not None else max(calls, min(1, arriving))
                free = less(free, tuple((name, amount * coming) for name, amount in uses_of(task)))
        return free

    def _arriving(self, task: TaskCore) -> int:
        """Claimed items that have not joined a call yet."""
        runs = self._running.values()
        return sum(1 for run in runs if run.task is task and run.job_run.place is None)

    # --- turns

    def give_turn(self, overdue: Sequence[str], heads: Sequence[Head]) -> None:
        """Keep free what the next job of one of these tasks uses, if it is its turn."""
        if self.planner.give_turn(overdue, heads, {name: uses_of(task) for name, task in self.heavy.items()}):
            self._wake()


def uses_of(task: TaskCore) -> Uses:
    """The resources of one run of a task, or of one call of a batch."""
    return () if task.needs is None else task.needs.uses
