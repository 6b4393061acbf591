"""The resources of one worker: what its running jobs use, and which tasks the next claim may bring.

A claim says which tasks and how many jobs, not how much they may use in all. So a claim is planned such that any jobs
it may bring fit together. Only dispatcher 0 claims tasks that use resources: two concurrent claims would each fill the
same room. A worker without resources has no `Capacity`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from treadle.core.model import Record
from treadle.core.placement import fitting_runs, runs_of_any
from treadle.tasks.core import BatchCore, TaskCore
from treadle.worker.running_job import RunningJob

Rooms = dict[str, tuple[int | None, float | None]]
"""Task -> its largest number of jobs in a claim, and their lease in seconds. None: the limit of the claim; the worker's
lease."""

Uses = tuple[tuple[str, int], ...]
TURN: Final = 5.0  # s for which a task did not fit, after which the worker keeps resources free for its next job


class Gathered(Protocol):
    """The part of `Batches` that plans need."""

    def room(self, task: BatchCore) -> int: ...
    def calls(self, task: BatchCore) -> int: ...


class Plan(Struct, frozen=True, gc=False):
    """The bounds of the next claim.

    limit     jobs at most
    heavy     the tasks that use resources and that it names
    rooms     tasks of which it may bring so many
    only      it names this task and no other: the one for which the worker has kept resources free
    narrow    it names fewer tasks or jobs than could start, so another claim follows at once
    """

    limit: int
    heavy: Collection[str] = ()
    rooms: Mapping[str, int] = {}
    only: str | None = None
    narrow: bool = False

    def among(self, tasks: Rooms, heavy: Collection[str]) -> Rooms:
        """Those of the tasks of a claim that it may bring, with their rooms. `heavy`: all that use resources."""
        if self.only is not None:
            return {self.only: (1, tasks[self.only][1])} if self.only in tasks else {}
        left = {name: room for name, room in tasks.items() if name not in heavy or name in self.heavy}
        return left | {name: (room, left[name][1]) for name, room in self.rooms.items() if name in left}


class Capacity:
    """One for each start of a worker with resources. Its methods run on the worker's event loop.

    running  the jobs that run here
    clock    the loop's time
    wake     wakes the dispatchers

    A task that can run here but has not fitted for TURN s waits for its turn, if a job of it is queued. Its turn is a
    reservation: what a job of it uses is kept free from then on, until a claim for it alone. One task has its turn at a
    time, in the order in which they began to wait. So with running jobs that end, a job of it starts, however many
    smaller jobs are queued.
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
        self._clock, self._wake = clock, wake
        self.used = dict.fromkeys(resources, 0)
        self.reserved = ""  # the task whose turn it is
        self.waits: dict[str, float] = {}  # task that did not fit -> the loop's time since when
        self._batches: Gathered | None = None
        self.heavy: dict[str, TaskCore] = {}  # the claimable tasks that use resources
        self._light_next = False  # the next claim of dispatcher 0 leaves out the tasks that use resources
        self._calls: deque[tuple[Uses, asyncio.Future[None]]] = deque()  # calls of batches that wait for resources

    def follow(self, batches: Gathered) -> None:
        """Count the calls that these batches gather."""
        self._batches = batches

    def claims(self, names: Iterable[str]) -> None:
        """These are the tasks that the worker claims now."""
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        self.heavy = {task.name: task for task in tasks if uses_of(task)}
        self.waits = {name: since for name, since in self.waits.items() if name in self.heavy}
        if self.reserved not in self.heavy:
            self.reserved = ""

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

    def plan(self, limit: int, number: int) -> Plan:
        """The next claim of a dispatcher that may bring `limit` jobs."""
        if number:
            # The slot that has become free belongs to the job for which resources were kept free.
            return Plan(0 if self._turn_has_come() else limit)
        free = self._free()
        fitting = [task for task in self.heavy.values() if _fit(self._cost(task), free)]
        self._note_waiting(task.name for task in self.heavy.values() if task not in fitting)
        if self.reserved:
            if any(task.name == self.reserved for task in fitting):
                return Plan(1, only=self.reserved, narrow=True)
            free = _less(free, uses_of(self._tasks[self.reserved]))
            fitting = [task for task in fitting if _fit(self._cost(task), free)]
        light, self._light_next = self._light_next, False
        if not fitting or light:
            return Plan(limit, narrow=light and bool(fitting))
        return self._among(fitting, free, limit)

    def _among(self, fitting: Sequence[TaskCore], free: Mapping[str, int], limit: int) -> Plan:
        """The largest claim of these tasks whose jobs fit together, whichever they are."""
        rooms: dict[str, int] = {}
        for task in fitting:
            if isinstance(task, BatchCore) and task.by is not None and self._batches is not None:
                rooms[task.name] = min(self._batches.room(task), fitting_runs(uses_of(task), free))
            elif isinstance(task, BatchCore) and (cost := self._cost(task)):
                free = _less(free, cost)  # one call, whatever the number of its items
        single = [self._cost(task) for task in fitting if not isinstance(task, BatchCore) or task.by is not None]
        most = min(runs_of_any(single, free), limit) if min(free.values(), default=0) >= 0 else 1
        return Plan(max(1, most), {task.name for task in fitting}, rooms)

    def answered(self, plan: Plan, records: Sequence[Record]) -> None:
        """The claim of this plan has brought these jobs. The wait of a task ends with a job of it, or if none is
        queued."""
        full = len(records) >= plan.limit
        if plan.only is not None:
            self.reserved = ""
            self.waits.pop(plan.only, None)
            self._wake()
            return
        if not plan.heavy:
            return
        self._light_next = full
        brought = {record.job.task for record in records}
        for name in list(self.waits):
            if name in plan.heavy and (not full or name in brought):
                del self.waits[name]

    def _free(self) -> dict[str, int]:
        """The free resources, less those that claimed items of batches are going to use."""
        free = {name: has - self.used[name] for name, has in self.has.items()}
        if self._batches is None:
            return free
        for uses, _ in self._calls:
            free = _less(free, uses)
        for task in self.heavy.values():
            if isinstance(task, BatchCore):
                calls, arriving = self._batches.calls(task), self._arriving(task)
                coming = calls + arriving if task.by is not None else max(calls, min(1, arriving))
                free = _less(free, tuple((name, amount * coming) for name, amount in uses_of(task)))
        return free

    def _arriving(self, task: TaskCore) -> int:
        """Claimed items that have not joined a call yet."""
        runs = self._running.values()
        return sum(1 for run in runs if run.task is task and run.job_run.place is None)

    def _cost(self, task: TaskCore) -> Uses:
        """The resources of one more job of a task: none for an item that joins a call which is gathered."""
        batches = self._batches
        if isinstance(task, BatchCore) and task.by is None and batches is not None:
            return () if batches.calls(task) or self._arriving(task) else uses_of(task)
        return uses_of(task)

    # --- turns

    def _turn_has_come(self) -> bool:
        return bool(self.reserved) and _fit(uses_of(self._tasks[self.reserved]), self._free())

    def _note_waiting(self, names: Iterable[str]) -> None:
        for name in names:
            self.waits.setdefault(name, self._clock())

    def overdue(self) -> list[str]:
        """The tasks that have waited for TURN seconds, longest wait first."""
        now = self._clock()
        return [] if self.reserved else [name for name, since in self.waits.items() if now - since >= TURN]

    def reserve(self, task: str) -> None:
        """Keep free what the next job of this task uses."""
        self.reserved = task
        self._wake()


def uses_of(task: TaskCore) -> Uses:
    """The resources of one run of a task, or of one call of a batch."""
    return () if task.needs is None else task.needs.uses


def _fit(uses: Uses, free: Mapping[str, int]) -> bool:
    return all(amount <= free.get(name, 0) for name, amount in uses)


def _less(free: Mapping[str, int], uses: Uses) -> dict[str, int]:
    left = dict(free)
    for name, amount in uses:
        left[name] = left.get(name, 0) - amount
    return left
