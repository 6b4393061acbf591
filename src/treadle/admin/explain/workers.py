"""Which workers could claim a job, and what keeps each of them from it.

The figures of workers are as old as their last heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import worker_of
from treadle.core.defaults import QUEUE, SYSTEM_QUEUE
from treadle.core.model import Presence
from treadle.core.placement_words import needs_of
from treadle.policy.claim_plan import less
from treadle.policy.misfits import is_left_by
from treadle.workflow.plan import FLOW


def serve(facts: Facts) -> list[Presence]:
    """The workers that claim from its queue. Any worker may maintain the storage, and only one of them does. The worker
    of a server lists no queues, and ends the workflows of the default one."""
    job = facts.row.job
    ended_by_servers = (job.queue, job.task) == (QUEUE, FLOW)
    return [
        worker
        for worker in facts.glance.workers
        if job.queue in worker.queues or job.queue == SYSTEM_QUEUE or (ended_by_servers and not worker.queues)
    ]


def able_to_run(serving: Sequence[Presence], facts: Facts) -> list[Presence]:
    """Those of the workers that have the task, which the ending of a job and Treadle's own jobs do not need."""
    row = facts.row
    return [
        worker
        for worker in serving
        if row.job.task in worker.tasks or row.job.queue == SYSTEM_QUEUE or row.function_done
    ]


def able_to_read(able: Sequence[Presence], facts: Facts) -> list[Presence]:
    """Those of the workers that do not have the version of the code which could not read its arguments."""
    return [worker for worker in able if not is_left_by(facts.row, worker, facts.glance.workers)]


def claims(worker: Presence) -> bool:
    """Whether it claims jobs now: its heartbeats come, no throttle pauses it, and it is not being replaced."""
    return not is_silent(worker) and not pauses(worker) and not worker.draining


def is_silent(worker: Presence) -> bool:
    """Whether a heartbeat is overdue: one comes every third of a lease, and `ttl` is three leases."""
    return worker.age > worker.ttl / 9 + 1


def pauses(worker: Presence) -> bool:
    """Whether a throttle keeps it from claiming now."""
    return worker.paused > worker.age


def free_slots(worker: Presence, facts: Facts) -> int:
    """The free slots of a worker. Its own figures are as old as its heartbeat; the rows are current."""
    runs = sum(worker_of(row) == worker.worker for row in facts.running)
    return max(0, worker.slots - max(runs, worker.running))


def free_amounts(worker: Presence) -> dict[str, int]:
    """The resources of a worker that no running job uses."""
    return {name: has - used for name, has, used in worker.resources}


def kept_for(worker: Presence, task: str) -> str:
    """The other task for whose next job a worker keeps resources free that jobs of this task use; ""."""
    other, own = needs_of([worker], worker.reserved), needs_of([worker], task)
    shared = other is not None and own is not None and dict(other.uses).keys() & dict(own.uses).keys()
    return worker.reserved if shared and worker.reserved != task else ""


def short_of(worker: Presence, facts: Facts) -> str | None:
    """The resource of which this worker has too little free for the job, less what it keeps for another task; None: it
    has room, or the job needs none."""
    needs = None if facts.row.function_done else needs_of(facts.glance.workers, facts.row.job.task)
    if needs is None:
        return None
    free = free_amounts(worker)
    if (other := needs_of([worker], kept_for(worker, needs.task))) is not None:
        free = less(free, other.uses)
    excess = needs.excess(free)
    return None if excess is None else excess[0]
