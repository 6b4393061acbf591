"""The plain tables of `treadle top`: queues, and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.limits import bound_words
from treadle.cli.listing import clear
from treadle.cli.output import data, lasts, plural, table
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.placement_words import has_words
from treadle.core.queue_rules import QueueRules
from treadle.server.overview import QueueOverview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treadle.server.overview import Overview

QUEUES = ("queue", "queued", "running", "scheduled", "blocked", "failed", "first waits", "max waiting", "state")
WORKERS = ("worker", "queues", "running", "labels", "up for")


def show(seen: Overview) -> None:
    """Print one screen. Jobs are counted up to 10,000: "10,000+" means at least as many."""
    clear()
    capped = seen.totals.capped
    rows = [(*_numbers(queue, capped), _state(queue)) for queue in _queues(seen)]
    table(QUEUES, rows, "no queue has jobs or workers", right=QUEUES[1:6])
    data("")
    workers = [
        (
            worker.worker,
            ", ".join(worker.queues),
            f"{worker.running}/{worker.slots}",
            has_words(worker),
            lasts(worker.uptime),
        )
        for worker in seen.workers
    ]
    table(WORKERS, workers, "no worker has sent a heartbeat recently", right=("running",))
    running, slots = sum(worker.running for worker in seen.workers), sum(worker.slots for worker in seen.workers)
    data(f"{plural(len(seen.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")


def _queues(seen: Overview) -> list[QueueOverview]:
    """The queues that have jobs, a worker or a limit of their own, by name."""
    by_name = {name: QueueOverview(name=name) for name in QueueRules(seen.limits).named if name != SYSTEM_QUEUE}
    by_name |= {queue.name: queue for queue in seen.queues}
    return [by_name[name] for name in sorted(by_name)]


def _numbers(queue: QueueOverview, capped: Sequence[str]) -> tuple[str, ...]:
    """The cells of a queue; "+" where the count stopped at its bound."""
    kinds = {"running": queue.running, "scheduled": queue.scheduled, "blocked": queue.blocked, "failed": queue.failed}
    return (
        queue.name,
        f"{queue.queued:,}+" if queue.queued_capped else str(queue.queued),
        *(f"{number:,}+" if kind in capped else str(number) for kind, number in kinds.items()),
        "" if queue.oldest is None else lasts(queue.oldest),
        bound_words(queue.max_waiting, queue.when_full),
    )


def _state(queue: QueueOverview) -> str:
    if queue.paused:
        return "paused"
    if queue.full:
        return "full"
    return f"open, {queue.unplaced:,} unplaced" if queue.unplaced else "open"
