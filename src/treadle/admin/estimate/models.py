"""The worker that an estimate adds: a copy of one that can run the job, otherwise one with what its task needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from treadle.admin.estimate.snapshot import Snapshot
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.model import Presence, Record
from treadle.core.placement import Needs
from treadle.core.placement_words import coded, needs_of, place_options
from treadle.policy.misfits import is_left_by

SLOTS: Final = 20  # if no worker serves the queue yet: the default of a worker


def model_for(copy: Snapshot, queue: str, task: str, rows: Iterable[Record]) -> Presence | None:
    """The worker of which more could run these jobs of a task. It serves their queue only, as the command says. None:
    the code that can read them is unknown."""
    able = [worker for worker in copy.workers if task in worker.tasks]
    reading = [worker for worker in able if not all(is_left_by(row, worker, copy.workers) for row in rows)]
    if able and not reading:
        return None
    serving = [worker for worker in reading if queue in worker.queues]
    like = next(iter([*[worker for worker in serving if not worker.draining], *serving, *reading]), None)
    if like is None:
        like = _fresh(copy, queue, task)
    named = queue != SYSTEM_QUEUE and "," not in queue  # the command can name it
    queues = (queue,) if named or not like.queues else (queue, *[other for other in like.queues if other != queue])
    unused = tuple((name, has, 0) for name, has, _ in like.resources)
    return replace(like, queues=queues, resources=unused, paused=0.0, draining="", reserved="", running=0, age=0.0)


def options_of(model: Presence) -> list[str]:
    """The options of `treadle worker` for its labels and resources."""
    return place_options(model.labels, [(name, has) for name, has, _ in model.resources])


def _fresh(copy: Snapshot, queue: str, task: str) -> Presence:
    """A worker with what the task needs and the code of those that have it. Without one, it has every task."""
    like = next(
        iter([*coded(copy.workers, task), *(worker for worker in copy.workers if queue in worker.queues)]), None
    )
    needs = needs_of(copy.workers, task)
    labels, amounts = dict(like.labels if like else ()), {name: has for name, has, _ in like.resources} if like else {}
    for name, values in needs.requires if needs else ():
        if name not in labels or (values and labels[name] not in values):
            labels[name] = values[0] if values else ""
    for name, amount in needs.uses if needs else ():
        amounts[name] = max(amount, amounts.get(name, 0))
    own = {needed.task: needed for needed in like.needs} if like else {}
    known = [*(like.tasks if like else ()), *own, task, *(row.job.task for row in copy.rows if like is None)]
    return Presence(
        worker="model",
        queues=(queue,),
        tasks=tuple(name for name in dict.fromkeys(known) if _runs(own.get(name), labels, amounts)),
        slots=next((worker.slots for worker in copy.workers if queue in worker.queues), SLOTS),
        labels=tuple(labels.items()),
        resources=tuple((name, amount, 0) for name, amount in amounts.items()),
        needs=tuple(own.values()),
    )


def _runs(needs: Needs | None, labels: dict[str, str], amounts: dict[str, int]) -> bool:
    return needs is None or (needs.unmet(labels) is None and needs.excess(amounts) is None)
