"""Sentences about queued jobs whose task requires labels or uses resources that no worker offers now.

Workers tell with their heartbeats what the tasks of their code need, so the caller needs no code. The figures are as
old as the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import count
from treadle.core.model import Presence
from treadle.core.placement import Needs
from treadle.core.placement_words import amount_of, lacking, needs_of


def placed(facts: Facts) -> str | None:
    """Why no live worker has the place for the job: no labels, never the resources, or not now. None: one has, or its
    task needs nothing."""
    workers, task = facts.glance.workers, facts.row.job.task
    if facts.row.function_done:
        return None
    needs = needs_of(workers, task)
    if needs is None:
        return None
    able = [each for each in workers if task in each.tasks]
    if not able:
        return lacking(workers, task)
    served = [each for each in able if facts.row.job.queue in each.queues]
    return _not_now(needs, served) if served else None


def _not_now(needs: Needs, able: Sequence[Presence]) -> str | None:
    """The resource that is in use on each of these workers, which could run it."""
    short: list[tuple[Presence, str, int]] = []
    for each in able:
        free = {name: has - used for name, has, used in each.resources}
        if (excess := needs.excess(free)) is None:
            return None
        short.append((each, excess[0], free.get(excess[0], 0)))
    worker, name, free_now = max(short, key=lambda each: each[2])
    amount = dict(needs.uses)[name]
    whose = f"worker {worker.worker!r}" if len(able) == 1 else f"the freest of {count(len(able), 'worker')}"
    turn = next((each for each, _, _ in short if each.reserved == needs.task), None)
    kept = "" if turn is None else f"; worker {turn.worker!r} starts nothing smaller until there is room for it"
    return f"it needs {amount:,} {name}: {whose} has {max(0, free_now):,} of {amount_of(worker, name):,} free{kept}"
