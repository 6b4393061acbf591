"""`treadle queues`: lists, pauses and resumes queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treadle.cli.limits import bound_words
from treadle.cli.output import as_json, document, lasts, table
from treadle.cli.target import Target, targeted
from treadle.cli.watch import Listing, pausable
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.queue_rules import QueueRules
from treadle.storage import bound_of, bounds_in

if TYPE_CHECKING:
    from treadle.core.query_model import Stats

COLUMNS = (
    "queue",
    "queued",
    "running",
    "scheduled",
    "blocked",
    "waiting",
    "failed",
    "first waits",
    "workers",
    "max waiting",
    "state",
)
LEFT = ("queue", "state", "first waits", "max waiting")


def by_queue(stats: Stats) -> list[dict[str, Any]]:
    """One entry per queue that has jobs, a worker or a limit of its own."""
    names = {count.queue for count in stats.counts} | {queue for worker in stats.workers for queue in worker.queues}
    rules, bounds = QueueRules(stats.limits), bounds_in(stats.limits)
    names |= rules.named
    found = []
    for name in sorted(names - {SYSTEM_QUEUE}):
        mine = [count for count in stats.counts if count.queue == name]
        jobs: dict[str, int] = {}
        for count in mine:
            jobs[count.state] = jobs.get(count.state, 0) + count.jobs
        line, aside = sum(count.queued for count in mine), sum(count.blocked for count in mine)
        bound = bound_of(bounds, name)
        found.append(
            {
                "queue": name,
                "queued": line,
                "running": jobs.get("running", 0),
                "scheduled": jobs.get("ready", 0) - line - aside,
                "blocked": aside,
                "waiting": jobs.get("waiting", 0),
                **{state: jobs.get(state, 0) for state in ("succeeded", "failed", "cancelled")},
                "first_waits": max((count.oldest for count in mine if count.oldest is not None), default=None),
                "workers": sum(name in worker.queues for worker in stats.workers),
                "paused": rules.pause_of(name) is not None,
                "max_waiting": None if bound is None else bound.max_waiting,
                "when_full": None if bound is None else bound.when_full,
                "full": bound is not None and jobs.get("ready", 0) >= (bound.max_waiting or 0),
            }
        )
    return found


@click.group(cls=Listing)
def queues() -> None:
    """List, pause and resume queues."""


@queues.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """Count the jobs of each queue by state, and show its workers."""
    found = by_queue(target.run(lambda app: app.queues.stats()))
    if json_:
        document(found)
        return
    rows = [
        (
            each["queue"],
            each["queued"],
            each["running"],
            each["scheduled"],
            each["blocked"],
            each["waiting"],
            each["failed"],
            "" if each["first_waits"] is None else lasts(each["first_waits"]),
            each["workers"],
            bound_words(each["max_waiting"], each["when_full"]),
            "paused" if each["paused"] else "full" if each["full"] else "open",
        )
        for each in found
    ]
    table(COLUMNS, rows, "no queue has jobs or workers", right=[name for name in COLUMNS if name not in LEFT])


pausable(
    queues,
    "queue",
    lambda app: app.queues,
    resume_help="Resume a paused queue.",
    pause_help="Stop claiming from a queue, on all workers at once. Running jobs continue.",
)
