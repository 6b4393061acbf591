"""Sentences about queued jobs whose task requires labels or uses resources that no worker offers now.

Workers tell with their heartbeats what the tasks of their code need, so the caller needs no code. The figures are as
old as the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import count, start_worker
from treadle.admin.explain.workers import able_to_read, claims, free_amounts, kept_for, short_of
from treadle.core.model import Presence
from treadle.core.placement import Needs
from treadle.core.placement_words import amount_of, lacking, needs_of, place_options


def placed(facts: Facts) -> str | None:
    """Why no live worker has the place for the job: no labels, never the resources, or not now. None: one has, or its
    task needs nothing, or no worker claims anything now."""
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
