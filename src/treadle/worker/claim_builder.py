"""Builds the claims of a worker: the queues with their shares, the tasks, the limit, and the jobs to leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.core.model import Claim
from treadle.core.ranges import COUNT, MOST_QUEUES, at_most
from treadle.policy.claim_plan import ClaimPlan, Rooms
from treadle.tasks.core import BatchCore
from treadle.tasks.options import name_of
from treadle.worker.handoff import HandOff
from treadle.worker.parts import WorkerParts


class ClaimBuilder:
    """Gives each queue its share of the slots by weight. Each claim begins with the next queue."""

    def __init__(self, parts: WorkerParts, handoff: HandOff) -> None:
        self._handoff, queues = handoff, parts.queues
        self._app_tasks, self._system_tasks = parts.app.tasks, parts.app.system_tasks
        self._election, self._claimable = parts.election, parts.tasks
        self._lease, self._state, self._batches = parts.config.lease, parts.state, parts.batches
        self._misfits, self._capacity = parts.misfits, parts.capacity
        self._first_queue = 0  # index of the queue with which the last claim began
        self._batch_tasks: list[BatchCore] = []
        self._queues = [(name, weight) for name, weight in queues.items() if name != defaults.SYSTEM_QUEUE]
        self._total_weight = sum(weight for _, weight in self._queues)
        self._tasks: Rooms = {}
        self._tasks_version = -1, -1  # (number of tasks, turn of the election) for which `_tasks` was built
        self._system_queue = ((defaults.SYSTEM_QUEUE, 1),) if queues and parts.maintains else ()
        self._serves_system_queue = defaults.SYSTEM_QUEUE in queues

    def refresh(self) -> None:
        """Find the tasks of the next claim: the app may have new tasks, and this worker may have gained or lost the
        lead."""
        tasks_version = len(self._app_tasks) + len(self._system_tasks), self._election.turn
        if self._tasks_version != tasks_version:
            self._tasks, self._tasks_version = self._claimable(), tasks_version
            if self._capacity is not None:
                self._capacity.claims(self._tasks)
            claimed_tasks = map(self._app_tasks.get, self._tasks)
            self._batch_tasks = [task for task in claimed_tasks if isinstance(task, BatchCore)]

    def __call__(self, limit: int, dispatcher: int, claim_id: str, plan: ClaimPlan | None = None) -> Claim:
        """`plan`: the tasks that fit into the free resources of the worker; None: it has none."""
        self.refresh()
        if len(self._queues) > 1:
            self._first_queue = (self._first_queue + 1) % len(self._queues)
            order = self._queues[self._first_queue :] + self._queues[: self._first_queue]
            queues = tuple([(name, max(1, limit * weight // self._total_weight)) for name, weight in order])
        else:
            queues = tuple([(name, limit) for name, _ in self._queues])
        state = self._state
        if state.demand.includes_system_queue() or self._serves_system_queue:
            queues = self._system_queue + queues
        # Leave out jobs with an unconfirmed outcome too: if the answer to the other dispatcher is lost, this worker
        # settles them again.
        unconfirmed = [run.record.job.id for run in state.unconfirmed.runs(but=dispatcher)]
        running = (*state.running, *unconfirmed, *self._misfits.left_out())
        tasks = self._tasks
        if self._batch_tasks:
            # Only dispatcher 0 claims items of batches: two concurrent claims would each fill the same room.
            room_of = self._batches.room if dispatcher == 0 else _no_room
            tasks = tasks | {task.name: (room_of(task), task.lease) for task in self._batch_tasks}
        if left_out := self._misfits.left_tasks():
            tasks = tasks | {name: (0, tasks[name][1]) for name in left_out if name in tasks}
        # No hand-off request with batch tasks: their room changes while the request is outstanding.
        hand_off = None if dispatcher or self._batch_tasks else self._handoff.address
        if plan is not None and self._capacity is not None:
            tasks = plan.among(tasks, self._capacity.heavy)
            if plan.narrow and hand_off is not None:
                hand_off = hand_off[0], 0.0  # ends the outstanding request, and leaves none
        return Claim(
            worker=claim_id,
            queues=queues,
            tasks=tasks,
            limit=max(1, limit),
            lease=self._lease,
            running=running,
            hand_off=hand_off,
        )


def _no_room(task: BatchCore) -> int:
    return 0


def weights(queues: Iterable[str] | Mapping[str, int] | None) -> dict[str, int] | None:
    """Check the argument `queues` of `Worker` and return the weight of each queue; None: the queues of the tasks.
    Raises BadOption."""
    if queues is None:
        return None
    if isinstance(queues, str):
        raise BadOption("queues", f"expected a list of names or {{name: weight}}, found the text {queues!r}")
    by_queue = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    at_most("queues", by_queue, MOST_QUEUES)
    for name, weight in by_queue.items():
        name_of(name, "queues")
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= COUNT:
            raise BadOption("queues", f"weight of {name!r}: expected 1 to {COUNT:,}, found {weight!r:.60}")
    return by_queue
