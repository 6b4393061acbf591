"""Which workers could claim a job, and what keeps each of them from it: labels, resources, code, or a throttle.

The figures of workers are as old as their last heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import count, start_worker, worker_of
from treadle.core.defaults import QUEUE, SYSTEM_QUEUE
from treadle.core.model import Presence
from treadle.core.placement import Needs
from treadle.core.placement_words import amount_of, lacking, needs_of, place_options
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
    """The workers that can run the job: those that have its task. Any worker can end a job whose function is done, and
    run Treadle's own jobs."""
    row = facts.row
    return [
        worker
        for worker in serving
        if row.job.task in worker.tasks or row.job.queue == SYSTEM_QUEUE or row.function_done
    ]


def able_to_read(able: Sequence[Presence], facts: Facts) -> list[Presence]:
    """The workers whose version of the code is not the one that could not read the job's arguments."""
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
    """The first resource of which this worker has too little free for the job, not counting what it keeps for another
    task; None: it has room, or the job needs none."""
    needs = None if facts.row.function_done else needs_of(facts.glance.workers, facts.row.job.task)
    if needs is None:
        return None
    free = free_amounts(worker)
    if (other := needs_of([worker], kept_for(worker, needs.task))) is not None:
        free = less(free, other.uses)
    excess = needs.excess(free)
    return None if excess is None else excess[0]


def placed(facts: Facts) -> str | None:
    """Why no live worker can place the job: none has the labels, none has enough of the resources, or they are in use
    now. None: one can, or its task needs neither, or no worker claims anything now."""
    workers, task = facts.glance.workers, facts.row.job.task
    if facts.row.function_done:
        return None
    needs = needs_of(workers, task)
    if needs is None:
        return None
    able = [worker for worker in workers if task in worker.tasks]
    if not able:
        return lacking(workers, task)
    served = [worker for worker in able if facts.row.job.queue in worker.queues]
    claiming = [worker for worker in able_to_read(served, facts) if claims(worker)]
    return _not_now(needs, claiming, facts) if claiming else None


def _not_now(needs: Needs, able: Sequence[Presence], facts: Facts) -> str | None:
    """The resource that is in use, or kept free for another task, on each of these workers, which could run it."""
    short: list[tuple[Presence, str, int]] = []
    for worker in able:
        if (name := short_of(worker, facts)) is None:
            return None
        short.append((worker, name, max(0, free_amounts(worker).get(name, 0))))
    worker, name, free_now = max(short, key=itemgetter(2))
    amount = dict(needs.uses)[name]
    whose = f"worker {worker.worker!r}" if len(able) == 1 else f"the freest of {count(len(able), 'worker')}"
    lacks = f"it needs {amount:,} {name}: {whose} has {free_now:,} of {amount_of(worker, name):,} free"
    more = start_worker(
        facts.row.job.queue, *place_options(worker.labels, [(name, has) for name, has, _ in worker.resources])
    )
    return f"{lacks}{_kept(worker, short, needs, name)}; {more} adds as much"


def _kept(worker: Presence, short: Sequence[tuple[Presence, str, int]], needs: Needs, name: str) -> str:
    """The words for resources that the freest worker, or another one, keeps free."""
    turn = next((other for other, _, _ in short if other.reserved == needs.task), None)
    if turn is not None:
        return f"; worker {turn.worker!r} starts nothing smaller until there is room for it"
    if not (other := kept_for(worker, needs.task)):
        return ""
    its = needs_of([worker], other)
    size = "" if its is None or name not in dict(its.uses) else f", which needs {dict(its.uses)[name]:,}"
    return f", and worker {worker.worker!r} keeps room for {other!r}{size}"
