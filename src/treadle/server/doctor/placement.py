"""The check of labels and resources: unfinished jobs whose task no running worker can ever run."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.core.placement_words import lacking
from treadle.core.query_model import Stats


def unplaced(stats: Stats) -> Iterator[tuple[str, str, int]]:
    """(task, what no worker has, jobs) of each task with ready jobs that no running worker can run."""
    for task, number in sorted(_ready(stats).items()):
        if (lack := lacking(stats.workers, task)) is not None:
            yield task, lack, number


def by_queue(stats: Stats) -> dict[str, int]:
    """The number of ready jobs that no running worker can run, by queue."""
    tasks, jobs = {task for task, _, _ in unplaced(stats)}, dict[str, int]()
    for count in stats.counts:
        if count.state == "ready" and count.task in tasks:
            jobs[count.queue] = jobs.get(count.queue, 0) + count.jobs
    return jobs


def queues(stats: Stats) -> set[str]:
    """The queues that no worker serves because all of their ready jobs belong to such tasks."""
    tasks = {task for task, _, _ in unplaced(stats)}
    named: dict[str, set[str]] = {}
    for count in stats.counts:
        if count.state in ("ready", "running") and count.task:
            named.setdefault(count.queue, set()).add(count.task)
    return {queue for queue, ready in named.items() if ready <= tasks}


def _ready(stats: Stats) -> dict[str, int]:
    jobs: dict[str, int] = {}
    for count in stats.counts:
        if count.state == "ready" and count.task:
            jobs[count.task] = jobs.get(count.task, 0) + count.jobs
    return jobs
