"""`treadle queues`: lists and pauses queues, lists workers, counts jobs, and estimates when a queue is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treadle.cli.group import Group
from treadle.cli.limits import bound_words, pausable
from treadle.cli.listing import listed, picked
from treadle.cli.output import as_json, document, lasts, note, plural
from treadle.cli.target import Target, targeted
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.placement import label_text
from treadle.core.queue_rules import QueueRules
from treadle.storage import bound_of, bounds_in

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.model import Presence
    from treadle.core.query_model import Glance, Stats

STATES = ("waiting", "ready", "running", "succeeded", "failed", "cancelled")

COUNTS = ("queued", "running", "scheduled", "blocked", "waiting", "failed")
COLUMNS = ("queue", *COUNTS, "first waits", "workers", "max waiting", "state")


def by_queue(stats: Stats) -> list[dict[str, Any]]:
    """One entry per queue that has jobs, a worker or a limit of its own."""
    names = {count.queue for count in stats.counts} | {queue for worker in stats.workers for queue in worker.queues}
    rules, bounds = QueueRules(stats.limits), bounds_in(stats.limits)
    names |= rules.named
    entries = []
    for name in sorted(names - {SYSTEM_QUEUE}):
        mine = [count for count in stats.counts if count.queue == name]
        jobs: dict[str, int] = {}
        for count in mine:
            jobs[count.state] = jobs.get(count.state, 0) + count.jobs
        line, blocked = sum(count.queued for count in mine), sum(count.blocked for count in mine)
        bound = bound_of(bounds, name)
        entries.append(
            {
                "queue": name,
                "queued": line,
                "running": jobs.get("running", 0),
                "scheduled": jobs.get("ready", 0) - line - blocked,
                "blocked": blocked,
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
    return entries


@click.group(cls=Group, default="list")
def queues() -> None:
    """List, pause and resume queues, and list their workers."""


@queues.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """Count the jobs of each queue by state, and show its workers."""
    plain = by_queue(target.run(lambda app: app.queues.stats()))
    rows = [
        (
            *(queue[name] for name in ("queue", *COUNTS)),
            "" if queue["first_waits"] is None else lasts(queue["first_waits"]),
            queue["workers"],
            bound_words(queue["max_waiting"], queue["when_full"]),
            "paused" if queue["paused"] else "full" if queue["full"] else "open",
        )
        for queue in plain
    ]
    listed(json_, plain, COLUMNS, rows, "no queue has jobs or workers", right=(*COUNTS, "workers"))


@queues.command()
@targeted
@as_json
def stats(target: Target, json_: bool) -> None:
    """Count jobs by task and state."""
    seen = target.run(lambda app: app.queues.stats())
    tasks: dict[tuple[str, str], dict[str, Any]] = {}
    for count in seen.counts:
        fresh = {"task": count.task, "queue": count.queue, **dict.fromkeys(STATES, 0)}
        tasks.setdefault((count.task, count.queue), fresh)[count.state] += count.jobs
    plain = list(tasks.values())
    rows = [({**entry, "task": entry["task"] or "(promise)"}).values() for entry in plain]
    listed(json_, plain, ("task", "queue", *STATES), [tuple(row) for row in rows], "no jobs", right=STATES)
    if not json_:
        running, slots = sum(worker.running for worker in seen.workers), sum(worker.slots for worker in seen.workers)
        note(f"{plural(len(seen.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")


@queues.command()
@targeted
@as_json
def workers(target: Target, json_: bool) -> None:
    """List the workers that have sent a heartbeat recently."""

    async def look(app: App) -> tuple[Glance, str | None]:
        from treadle.worker.leader import ID, leader_of

        [row] = await app.storage.get([ID])
        return await app.queues.glance(), leader_of(row)

    glance, leader = target.run(look)
    plain = [
        {
            **picked(worker, "worker", "host", "pid", queues=list(worker.queues)),
            **picked(worker, "slots", "running", uptime=round(worker.uptime, 3), leads=worker.worker == leader),
            "draining": worker.draining or None,
            "labels": dict(worker.labels),
            "resources": {name: {"has": has, "used": used} for name, has, used in worker.resources},
        }
        for worker in glance.workers
    ]
    are_placed = any(worker.labels or worker.resources for worker in glance.workers)
    rows = [
        (
            _name_of(worker, leader),
            worker.host,
            str(worker.pid),
            ", ".join(worker.queues),
            f"{worker.running}/{worker.slots}",
            lasts(worker.uptime),
            *((_labels(worker), _resources(worker)) if are_placed else ()),
        )
        for worker in glance.workers
    ]
    columns = ("worker", "host", "pid", "queues", "running", "up for", *(("labels", "used") if are_placed else ()))
    listed(json_, plain, columns, rows, "no worker has sent a heartbeat recently", right=("pid", "running"))


def _labels(worker: Presence) -> str:
    return ", ".join(label_text(*label) for label in worker.labels)


def _resources(worker: Presence) -> str:
    return ", ".join(f"{name} {used:,}/{has:,}" for name, has, used in worker.resources)


def _name_of(worker: Presence, leader: str | None) -> str:
    facts = ["leads"] if worker.worker == leader else []
    facts += [f"ends its running jobs: {worker.draining}"] if worker.draining else []
    return f"{worker.worker} ({'; '.join(facts)})" if facts else worker.worker


@queues.command()
@targeted
@click.argument("queue")
@as_json
def plan(target: Target, queue: str, json_: bool) -> None:
    """Estimate when QUEUE is empty, what its jobs wait for most, and what would change that."""
    from treadle.cli.estimates import repeated, show_plan

    estimate = repeated(target, target.run(lambda app: app.queues.plan(queue)))
    if json_:
        document(estimate)
    else:
        show_plan(estimate)


pausable(
    queues,
    "queue",
    lambda app: app.queues,
    resume_help="Resume a paused queue.",
    pause_help="Stop claiming from a queue, on all workers at once. Running jobs continue.",
)
