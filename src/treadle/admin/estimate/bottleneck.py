"""Finds out in a virtual run why jobs wait: for a limit, slots, resources, or a worker that can run them."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Final, NamedTuple

from treadle.admin.estimate.fleet import VirtualFleet
from treadle.admin.estimate.snapshot import Snapshot
from treadle.core.limit_model import LimitUse
from treadle.core.model import Record
from treadle.core.placement_words import coded, needs_of, obstacle
from treadle.storage import rule_for

LOOK: Final = 8  # steps of a run between two looks
ROWS: Final = 30  # jobs that one look asks about
SLOTS: Final = "the slots of its workers"


class Wait(NamedTuple):
    """The cause for which a job waits. `for_ever`: it does not end by itself."""

    what: str
    for_ever: bool = False


class Waits:
    """The causes for which the jobs of a queue waited in the runs without a change, and how many jobs started."""

    def __init__(self, copy: Snapshot, queue: str) -> None:
        self._copy, self._queue = copy, queue
        self._passing: dict[str, float] = defaultdict(float)
        self._lasting: dict[str, float] = defaultdict(float)
        self._starts, self._seconds = 0, 0.0

    def is_empty(self, fleet: VirtualFleet) -> bool:
        """Note now and then what the jobs wait for, then say whether none does."""
        unstarted = len(fleet.open[self._queue])
        if unstarted and not fleet.steps % LOOK:
            self._note(fleet, self._passing)
        return not unstarted

    def _note(self, fleet: VirtualFleet, causes: dict[str, float]) -> None:
        unstarted = fleet.open[self._queue]
        rows, uses = fleet.rows(islice(unstarted, ROWS)), _by_key(fleet)
        for row in rows:
            if (wait := wait_of(row, fleet, self._copy, uses)) is not None:
                causes[wait.what] += len(unstarted) / len(rows)

    def count(self, fleet: VirtualFleet, began: float, drained: bool) -> None:
        """A run has ended. The jobs that are left of a queue that is never empty count more than all before."""
        self._starts, self._seconds = self._starts + fleet.starts, self._seconds + fleet.now - began
        if not drained and not fleet.cut:
            self._note(fleet, self._lasting)

    @property
    def leaving(self) -> float | None:
        return self._starts / self._seconds if self._seconds > 0 else None

    @property
    def bottleneck(self) -> str | None:
        """The most frequent cause, as words; None: no job waited."""
        causes = self._lasting or self._passing
        return max(causes, key=causes.__getitem__) if causes else None


def never_starts(fleet: VirtualFleet, copy: Snapshot, id: str) -> bool:
    """Whether a job waits at the end of a run for something that does not end by itself."""
    rows = fleet.rows([id])
    wait = wait_of(rows[0], fleet, copy, _by_key(fleet)) if rows else None
    return wait is not None and wait.for_ever


def wait_of(row: Record, fleet: VirtualFleet, copy: Snapshot, uses: dict[str, LimitUse]) -> Wait | None:
    """The cause for which a job waits now; None: it may start with the next claim, or is not due."""
    if row.blocked_on is not None:
        return _limit(rule_for(uses, row.blocked_on), row.blocked_on)
    if row.queue_position is None:
        return None
    use = rule_for(uses, f"queue:{row.job.queue}")
    if use is not None and not _has_room(use):
        return _limit(use, use.rule.name)
    return _workers(row, fleet, copy)


def _by_key(fleet: VirtualFleet) -> dict[str, LimitUse]:
    return {use.key: use for use in fleet.limits()}


def _has_room(use: LimitUse) -> bool:
    return (use.rule.slots is None or use.used < use.rule.slots) and use.next_start is None and use.rule.rate != 0


def _limit(use: LimitUse | None, key: str) -> Wait:
    limit = f"the limit {key!r}"
    if use is None or (use.rule.slots != 0 and use.rule.rate != 0):
        return Wait(limit)
    if any(pause.why == "paused" for pause in use.pauses) or not use.pauses:
        return Wait(f"{limit}, which is paused", for_ever=True)
    return Wait(f"{limit}, which rests")


def _workers(row: Record, fleet: VirtualFleet, copy: Snapshot) -> Wait | None:
    queue, task = row.job.queue, row.job.task
    serving = [worker for worker in fleet.workers if queue in worker.queues and worker.claims_more]
    if not serving:
        return Wait("a worker: none serves it", for_ever=True)
    able = [worker for worker in serving if task in worker.tasks]
    if not able:
        return Wait(_no_place(task, copy), for_ever=True)
    able = [worker for worker in able if row.job.id not in worker.left_out]
    if not able:
        return Wait(f"a worker with another version of task {task!r}", for_ever=True)
    claiming = [worker for worker in able if worker.starts_at <= fleet.now]
    if not claiming:
        return Wait("its workers, which a throttle pauses")
    roomy = [worker for worker in claiming if worker.lacks(task) is None]
    if not roomy and any(worker.free > 0 for worker in claiming):
        return Wait(f"the resource {claiming[0].lacks(task)!r} of its workers")
    if all(worker.free <= 0 for worker in roomy or claiming):
        return Wait(SLOTS)
    return None


def _no_place(task: str, copy: Snapshot) -> str:
    """Why no worker of its queue can run the task."""
    needs = needs_of(copy.workers, task)
    why = None if needs is None else obstacle(needs, coded(copy.workers, task))
    return f"a worker for task {task!r}: {why or 'none of the queue has it'}"
