"""`treadle top`: shows queues and workers, and refreshes until Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treadle.cli.output import data, lasts, plural, table
from treadle.cli.queues import by_queue
from treadle.cli.target import Target, targeted
from treadle.cli.watch import again, clear, every
from treadle.core.model import FINAL

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.model import Stats

QUEUES = ("queue", "queued", "running", "scheduled", "blocked", "failed", "first waits", "done/s", "state")
WORKERS = ("worker", "queues", "running", "up for")


@click.command()
@targeted
@every
def top(target: Target, every_: float, times: int | None) -> None:
    """Show queues and workers, and refresh until Ctrl-C."""
    before: dict[str, int] | None = None

    async def look(app: App) -> None:
        nonlocal before
        before = _show(await app.queues.stats(), before or {}, 0.0 if before is None else every_)

    again(target, look, every_, times)


def _show(stats: Stats, before: dict[str, int], since: float) -> dict[str, int]:
    """Print one screen -> the number of ended jobs by queue."""
    ended = {each["queue"]: sum(each[str(state)] for state in FINAL) for each in by_queue(stats)}
    clear()
    rows = [
        (
            each["queue"],
            each["queued"],
            each["running"],
            each["scheduled"],
            each["blocked"],
            each["failed"],
            "" if each["first_waits"] is None else lasts(each["first_waits"]),
            f"{max(0, ended[each['queue']] - before[each['queue']]) / since:.1f}"
            if since and each["queue"] in before
            else "",
            "paused" if each["paused"] else "open",
        )
        for each in by_queue(stats)
    ]
    table(QUEUES, rows, "no queue has jobs or workers", right=QUEUES[1:6])
    data("")
    workers = [
        (each.worker, ", ".join(each.queues), f"{each.running}/{each.slots}", lasts(each.uptime))
        for each in stats.workers
    ]
    table(WORKERS, workers, "no worker has sent a heartbeat recently", right=("running",))
    running, slots = sum(each.running for each in stats.workers), sum(each.slots for each in stats.workers)
    data(f"{plural(len(stats.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")
    return ended
