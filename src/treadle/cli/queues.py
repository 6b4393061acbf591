"""`treadle queues`: what is in each queue; pausing and resuming them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treadle.cli.output import as_json, document, lasts, table
from treadle.cli.target import Target, targeted
from treadle.cli.watch import Listing, pausable

if TYPE_CHECKING:
    from treadle.core.model import Stats

COLUMNS = ("queue", "in line", "running", "later", "aside", "waiting", "failed", "first waits", "workers", "state")
LEFT = ("queue", "state", "first waits")


def by_queue(stats: Stats) -> list[dict[str, Any]]:
    """One line per queue that has jobs, a worker or a limit of its own."""
    names = {count.queue for count in stats.counts} | {queue for worker in stats.workers for queue in worker.queues}
    names |= {use.key.removeprefix("queue:") for use in stats.limits if use.key.startswith("queue:")}
    rules = {use.key: use.rule for use in stats.limits}
    found = []
    for name in sorted(names):
        mine = [count for count in stats.counts if count.queue == name]
        jobs: dict[str, int] = {}
        for count in mine:
            jobs[count.state] = jobs.get(count.state, 0) + count.jobs
        line, aside = sum(count.in_line for count in mine), sum(count.parked for count in mine)
        rule = rules.get(f"queue:{name}", rules.get("queue"))
        found.append(
            {
                "queue": name,
                "in_line": line,
                "running": jobs.get("running", 0),
                "scheduled": jobs.get("ready", 0) - line - aside,
                "aside": aside,
                "waiting": jobs.get("waiting", 0),
                **{state: jobs.get(state, 0) for state in ("succeeded", "failed", "cancelled")},
                "first_waits": max((count.oldest for count in mine if count.oldest is not None), default=None),
                "workers": sum(name in worker.queues for worker in stats.workers),
                "paused": rule is not None and rule.slots == 0,
            }
        )
    return found


@click.group(cls=Listing)
def queues() -> None:
    """What is in each queue; pause and resume them."""


@queues.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """What is in each queue."""
    found = by_queue(target.run(lambda app: app.queues.stats()))
    if json_:
        document(found)
        return
    rows = [
        (
            each["queue"],
            each["in_line"],
            each["running"],
            each["scheduled"],
            each["aside"],
            each["waiting"],
            each["failed"],
            "" if each["first_waits"] is None else lasts(each["first_waits"]),
            each["workers"],
            "paused" if each["paused"] else "open",
        )
        for each in found
    ]
    table(COLUMNS, rows, "no queues: no jobs, no workers", right=[name for name in COLUMNS if name not in LEFT])


pausable(
    queues,
    "queue",
    lambda app: app.queues,
    resume_help="Claim from a queue again.",
    pause_help="Claim nothing more from a queue, everywhere and at once. What runs goes on.",
)
