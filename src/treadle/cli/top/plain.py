"""The plain tables of `treadle top`: queues, and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.output import data, lasts, plural, table
from treadle.cli.watch import clear

if TYPE_CHECKING:
    from treadle.server.overview import Overview

QUEUES = ("queue", "queued", "running", "scheduled", "blocked", "failed", "first waits", "done/s", "state")
WORKERS = ("worker", "queues", "running", "up for")


def show(overview: Overview) -> None:
    """Print one overview. `done/s` is the rate of the last full minute, as workers measured it."""
    clear()
    rows = [
        (
            each.name,
            f"{each.queued:,}+" if each.queued_capped else each.queued,
            each.running,
            each.scheduled,
            each.blocked,
            each.failed,
            "" if each.oldest is None else lasts(each.oldest),
            "" if each.ended_rate is None else f"{each.ended_rate:.1f}",
            "paused" if each.paused else "open",
        )
        for each in overview.queues
    ]
    table(QUEUES, rows, "no queue has jobs or workers", right=QUEUES[1:6])
    data("")
    workers = [
        (each.worker, ", ".join(each.queues), f"{each.running}/{each.slots}", lasts(each.uptime))
        for each in overview.workers
    ]
    table(WORKERS, workers, "no worker has sent a heartbeat recently", right=("running",))
    running, slots = sum(each.running for each in overview.workers), overview.totals.slots
    data(f"{plural(len(overview.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")
