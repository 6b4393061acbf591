"""Words for tasks that no running worker can ever run, because of labels or resources.

The heartbeats of workers say what the tasks of their code need, so the caller needs no code of the app.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from treadle.core.model import Presence
from treadle.core.placement import Needs, label_text, required, similar


def lacking(workers: Sequence[Presence], task: str) -> str | None:
    """Why no live worker can ever run this task. None: one can, or no worker reports it."""
    needs = needs_of(workers, task)
    if needs is None or any(task in worker.tasks for worker in workers):
        return None
    return never(needs, coded(workers, task))


def coded(workers: Sequence[Presence], task: str) -> list[Presence]:
    """The workers that have the code of a task with needs, even if they cannot run it."""
    return [worker for worker in workers if any(has.task == task for has in worker.needs)]


def needs_of(workers: Sequence[Presence], task: str) -> Needs | None:
    """The needs of a task, as reported by the workers that have its code."""
    return next((needs for worker in workers for needs in worker.needs if needs.task == task), None)


def never(needs: Needs, coded: Sequence[Presence]) -> str | None:
    """Why none of these workers can ever run the task, and which options change it; None: one can."""
    why = obstacle(needs, coded)
    return None if why is None else f"{why}: a worker started with {_options(needs)} runs it"


def obstacle(needs: Needs, coded: Sequence[Presence]) -> str | None:
    """Why none of these workers can ever run the task; None: one can."""
    able = [worker for worker in coded if needs.unmet(dict(worker.labels)) is None]
    return too_large_for_all(needs, able) if able else unmet_by_all(needs, coded)


def unmet_by_all(needs: Needs, workers: Sequence[Presence]) -> str:
    """The requirement that no worker meets, or the words for requirements that none meets together."""
    for name, values in needs.requires:
        alone = Needs(needs.task, ((name, values),))
        if all(alone.unmet(dict(worker.labels)) for worker in workers):
            near = similar(name, (label for worker in workers for label, _ in worker.labels))
            return f"no running worker has label {required(name, values)}{near}"
    wanted = " and ".join(required(name, values) for name, values in needs.requires)
    return f"no running worker has all of the labels {wanted}"


def too_large_for_all(needs: Needs, workers: Sequence[Presence]) -> str | None:
    """The resource of which no worker has enough; None: some worker has enough of each resource, but no worker has
    enough of all."""
    for name, amount in needs.uses:
        largest = max((amount_of(worker, name) for worker in workers), default=0)
        if largest < amount:
            if not largest:
                near = similar(name, (resource[0] for worker in workers for resource in worker.resources))
                return f"it needs {amount:,} {name}, and no running worker has any{near}"
            return f"it needs {amount:,} {name}; the largest worker has {largest:,}"
    if needs.uses and all(needs.excess({name: has for name, has, _ in worker.resources}) for worker in workers):
        wanted = " and ".join(f"{amount:,} {name}" for name, amount in needs.uses)
        return f"it needs {wanted}, and no running worker has both"
    return None


def amount_of(worker: Presence, name: str) -> int:
    """How much of a resource a worker has."""
    return next((has for resource, has, _ in worker.resources if resource == name), 0)


def place_options(labels: Iterable[tuple[str, str]], resources: Iterable[tuple[str, int]]) -> list[str]:
    """The options of `treadle worker` for these labels and resources."""
    options = [("--label", label_text(*label)) for label in labels]
    options += [("--resource", f"{name}={amount}") for name, amount in resources]
    # A name that begins with a dash would be read as an option.
    return [
        word for option, text in options for word in ([f"{option}={text}"] if text.startswith("-") else [option, text])
    ]


def _options(needs: Needs) -> str:
    """The options of `treadle worker` that give a worker what a task needs."""
    labels = [(name, values[0] if values else "") for name, values in needs.requires]
    return shlex.join(place_options(labels, needs.uses))


def has_words(worker: Presence) -> str:
    """The labels of a worker, and how much of its resources is in use: `gpu=a100 memory_mb 512/2,048`."""
    labels = [label_text(*label) for label in worker.labels]
    return " ".join([*labels, *(f"{name} {used:,}/{has:,}" for name, has, used in worker.resources)])
