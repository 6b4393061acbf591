"""The plain tables of `treadle top`: queues, and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.output import data, lasts, plural, table
from treadle.cli.watch import clear

if TYPE_CHECKING:
    from treadle.core.query_model import Glance, QueueGlance

QUEUES = ("queue", "queued", "running", "scheduled", "blocked", "failed", "first waits", "state")
WORKERS = ("worker", "queues", "running", "up for")


def show(seen: Glance) -> None:
    """Print one screen. Jobs are counted up to 10,000: "10,000+" means at least as many."""
    clear()
    paused = {use.key.partition(":")[2] for use in seen.limits if use.key.startswith("queue:") and use.rule.slots == 0}
    all_paused = any(use.key == "queue" and use.rule.slots == 0 for use in seen.limits)
    own = {use.key.removeprefix("queue:") for use in seen.limits if use.key.startswith("queue:")}
    rows = [
        (*_numbers(queue, seen), "paused" if name in paused or (all_paused and name not in own) else "open")
        for name, queue in _queues(seen, own).items()
    ]
    table(QUEUES, rows, "no queue has jobs or workers", right=QUEUES[1:6])
    data("")
    workers = [
        (each.worker, ", ".join(each.queues), f"{each.running}/{each.slots}", lasts(each.uptime))
        for each in seen.workers
    ]
    table(WORKERS, workers, "no worker has sent a heartbeat recently", right=("running",))
    running, slots = sum(each.running for each in seen.workers), sum(each.slots for each in seen.workers)
    data(f"{plural(len(seen.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")


def _queues(seen: Glance, limited: set[str]) -> dict[str, QueueGlance]:
    """The queues that have jobs, a worker or a limit of their own, by name."""
    from treadle.core.query_model import QueueGlance

    names = (
        {each.name for each in seen.queues} | {queue for worker in seen.workers for queue in worker.queues} | limited
    )
    found = {name: QueueGlance(name=name) for name in sorted(names)}
    return found | {each.name: each for each in seen.queues}


def _numbers(queue: QueueGlance, seen: Glance) -> tuple[str, ...]:
    """The cells of a queue; "+" where the count stopped at its bound."""
    kinds = {
        "running": queue.running,
        "scheduled": queue.scheduled,
        "blocked": queue.blocked,
        "failed": queue.failed,
    }
    return (
        queue.name,
        f"{queue.queued:,}+" if queue.queued_capped else str(queue.queued),
        *(f"{number:,}+" if kind in seen.capped else str(number) for kind, number in kinds.items()),
        "" if queue.oldest is None else lasts(queue.oldest),
    )
