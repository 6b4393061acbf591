"""What a claim asks for: which lines, which tasks, how many, and what must not come back.

Without it a weight would mean nothing, and a worker would be handed the jobs it still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from treadle.core import defaults
from treadle.core.model import Claim
from treadle.errors import BadOption
from treadle.tasks.batch import BatchTask
from treadle.tasks.options import name_of
from treadle.worker.handoff import HandOff
from treadle.worker.leader import LeaderElection
from treadle.worker.parts import WorkerParts

Rooms = dict[str, tuple[int | None, float | None]]
"""How many jobs of each task, and their lease in seconds; None: as many as there are slots, and the worker's."""


class ClaimBuilder:
    """Builds the claim for so many slots: each queue's share by weight, the first one another each time."""

    def __init__(
        self,
        parts: WorkerParts,
        queues: dict[str, int],
        election: LeaderElection,
        claimable: Callable[[], Rooms],
        handoff: HandOff,
        tends: bool,
    ) -> None:
        self._handoff = handoff
        self._all, self._owned, self._election, self._claimable = parts.app.tasks, parts.app.own, election, claimable
        self._lease, self._state, self._batches, self._turn = parts.config.lease, parts.state, parts.batches, 0
        self._gathered: list[BatchTask[Any, Any]] = []
        self._queues = [(name, weight) for name, weight in queues.items() if name != defaults.OWN_QUEUE]
        self._total = sum(weight for _, weight in self._queues)
        self._tasks: Rooms = {}
        self._known, self._own_at = (-1, -1), 0.0
        self._own = ((defaults.OWN_QUEUE, 1),) if queues and tends else ()
        self._always = defaults.OWN_QUEUE in queues

    def __call__(self, room: int, dispatcher: int, ticket: str) -> Claim:
        now = self._state.loop.time()
        known_now = len(self._all) + len(self._owned), self._election.turn
        if self._known != known_now:
            self._tasks, self._known = self._claimable(), known_now
            known = map(self._all.get, self._tasks)
            self._gathered = [task for task in known if isinstance(task, BatchTask)]
        if len(self._queues) > 1:
            self._turn = (self._turn + 1) % len(self._queues)
            order = self._queues[self._turn :] + self._queues[: self._turn]
            queues = tuple([(name, max(1, room * weight // self._total)) for name, weight in order])
        else:
            queues = tuple([(name, room) for name, _ in self._queues])
        state = self._state  # our own is one more line to look at: not each time while jobs flow
        if self._always or state.own or not state.flowing or state.behind_since is None or now >= self._own_at:
            queues, self._own_at, state.own = self._own + queues, now + defaults.OWN_EVERY, False
        # Nor what another pump is settling: were that answer lost, it would find its job gone.
        holds = (*state.running, *[run.record.job.id for run in state.unsettled(but=dispatcher)])
        tasks = self._tasks
        if self._gathered:
            # By one pump only: two claims under way at once would each fill the room there is.
            room_of = self._batches.room if dispatcher == 0 else _none
            tasks = tasks | {task.name: (room_of(task), task.lease) for task in self._gathered}
        # The room of a batch changes while an ask stands, so then there is no hand-off.
        hand = None if dispatcher or self._gathered else self._handoff.words
        return Claim(
            worker=ticket, queues=queues, tasks=tasks, limit=max(1, room), lease=self._lease, holds=holds, hand=hand
        )


def _none(task: BatchTask[Any, Any]) -> int:
    return 0


def weights(queues: Iterable[str] | Mapping[str, int] | None) -> dict[str, int] | None:
    """The queues as they were asked for, each with its weight; None: those of the tasks. Raises BadOption."""
    if queues is None:
        return None
    if isinstance(queues, str):
        raise BadOption("queues", f"expected a list of names or {{name: weight}}, found the one text {queues!r}")
    found = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    for name, weight in found.items():
        name_of(name, "queues")
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise BadOption("queues", f"weight of {name!r}: expected 1 or more, found {weight!r}")
    return found
