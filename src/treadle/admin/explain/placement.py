"""Sentences about queued jobs whose task requires labels or uses resources that no worker offers now.

Workers tell with their heartbeats what the tasks of their code need, so the caller needs no code. The figures are as
old as the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import count
from treadle.core.model import Presence
from treadle.core.placement import Needs, required, similar


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
        return _never(needs, [each for each in workers if any(has.task == task for has in each.needs)])
    served = [each for each in able if facts.row.job.queue in each.queues]
    return _not_now(needs, served) if served else None


def needs_of(workers: Sequence[Presence], task: str) -> Needs | None:
    """What a task needs, as the workers that have its code tell."""
    return next((needs for each in workers for needs in each.needs if needs.task == task), None)


def _never(needs: Needs, coded: Sequence[Presence]) -> str | None:
    """Why none of the workers that have the code can ever run it."""
    able = [each for each in coded if needs.unmet(dict(each.labels)) is None]
    if not able:
        return f"{unmet_by_all(needs, coded)}: a worker started with {_options(needs)} runs it"
    over = too_large_for_all(needs, able)
    return None if over is None else f"{over}: a worker started with {_options(needs)} runs it"


def unmet_by_all(needs: Needs, workers: Sequence[Presence]) -> str:
    """The requirement that no worker meets, or the words for requirements that none meets together."""
    for name, values in needs.requires:
        alone = Needs(needs.task, ((name, values),))
        if all(alone.unmet(dict(each.labels)) for each in workers):
            near = similar(name, (label for each in workers for label, _ in each.labels))
            return f"no running worker has label {required(name, values)}{near}"
    words = " and ".join(required(name, values) for name, values in needs.requires)
    return f"no running worker has all of the labels {words}"


def too_large_for_all(needs: Needs, workers: Sequence[Presence]) -> str | None:
    """The resource of which no worker has enough; None: each of them is enough somewhere, but not together."""
    for name, amount in needs.uses:
        largest = max((_has(each, name) for each in workers), default=0)
        if largest < amount:
            if not largest:
                near = similar(name, (each[0] for worker in workers for each in worker.resources))
                return f"it needs {amount:,} {name}, and no running worker has any{near}"
            return f"it needs {amount:,} {name}; the largest worker has {largest:,}"
    if needs.uses and all(needs.excess({name: has for name, has, _ in each.resources}) for each in workers):
        words = " and ".join(f"{amount:,} {name}" for name, amount in needs.uses)
        return f"it needs {words}, and no running worker has both"
    return None


def _not_now(needs: Needs, able: Sequence[Presence]) -> str | None:
    """The resource that is in use on each of these workers, which could run it."""
    short: list[tuple[Presence, str, int]] = []
    for each in able:
        free = {name: has - used for name, has, used in each.resources}
        lacking = next(((name, amount) for name, amount in needs.uses if free.get(name, 0) < amount), None)
        if lacking is None:
            return None
        short.append((each, lacking[0], free.get(lacking[0], 0)))
    worker, name, free_now = max(short, key=lambda each: each[2])
    amount = dict(needs.uses)[name]
    whose = f"worker {worker.worker!r}" if len(able) == 1 else f"the freest of {count(len(able), 'worker')}"
    turn = next((each for each, _, _ in short if each.reserved == needs.task), None)
    kept = "" if turn is None else f"; worker {turn.worker!r} starts nothing smaller until there is room for it"
    return f"it needs {amount:,} {name}: {whose} has {max(0, free_now):,} of {_has(worker, name):,} free{kept}"


def _has(worker: Presence, name: str) -> int:
    return next((has for resource, has, _ in worker.resources if resource == name), 0)


def _options(needs: Needs) -> str:
    """The options of `treadle worker` that give a worker what it needs."""
    words = [f"--label {name}{f'={values[0]}' if values else ''}" for name, values in needs.requires]
    words += [f"--resource {name}={amount}" for name, amount in needs.uses]
    return " ".join(words)
