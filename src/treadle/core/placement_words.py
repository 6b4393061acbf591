"""Words for tasks that no running worker can ever run, because of labels or resources.

Workers tell with their heartbeats what the tasks of their code need, so the caller needs no code.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.model import Presence
from treadle.core.placement import Needs, required, similar


def lacking(workers: Sequence[Presence], task: str) -> str | None:
    """Why no live worker can ever run this task. None: one can, or none tells of it."""
    needs = needs_of(workers, task)
    if needs is None or any(task in each.tasks for each in workers):
        return None
    return never(needs, [each for each in workers if any(has.task == task for has in each.needs)])


def needs_of(workers: Sequence[Presence], task: str) -> Needs | None:
    """The needs of a task, as the workers that have its code tell."""
    return next((needs for each in workers for needs in each.needs if needs.task == task), None)


def never(needs: Needs, coded: Sequence[Presence]) -> str | None:
    """Why none of these workers can ever run the task; None: one can."""
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
        largest = max((amount_of(each, name) for each in workers), default=0)
        if largest < amount:
            if not largest:
                near = similar(name, (each[0] for worker in workers for each in worker.resources))
                return f"it needs {amount:,} {name}, and no running worker has any{near}"
            return f"it needs {amount:,} {name}; the largest worker has {largest:,}"
    if needs.uses and all(needs.excess({name: has for name, has, _ in each.resources}) for each in workers):
        words = " and ".join(f"{amount:,} {name}" for name, amount in needs.uses)
        return f"it needs {words}, and no running worker has both"
    return None


def amount_of(worker: Presence, name: str) -> int:
    """How much of a resource a worker has."""
    return next((has for resource, has, _ in worker.resources if resource == name), 0)


def _options(needs: Needs) -> str:
    """The options of `treadle worker` that give a worker what it needs."""
    words = [f"--label {name}{f'={values[0]}' if values else ''}" for name, values in needs.requires]
    words += [f"--resource {name}={amount}" for name, amount in needs.uses]
    return " ".join(words)


def has_words(worker: Presence) -> str:
    """The labels of a worker, and how much of its resources is in use: `gpu=a100 memory_mb 512/2,048`."""
    labels = [f"{name}={value}" if value else name for name, value in worker.labels]
    return " ".join([*labels, *(f"{name} {used:,}/{has:,}" for name, has, used in worker.resources)])
