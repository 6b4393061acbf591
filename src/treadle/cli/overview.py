"""`treadle workers` and `treadle stats`: the live workers, and the number of jobs by task and state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treadle.cli.output import as_json, document, lasts, note, plural, table
from treadle.cli.target import Target, targeted
from treadle.core.placement import label_text

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.model import Presence
    from treadle.core.query_model import Glance

STATES = ("waiting", "ready", "running", "succeeded", "failed", "cancelled")


@click.command()
@targeted
@as_json
def workers(target: Target, json_: bool) -> None:
    """List the workers that have sent a heartbeat recently."""

    async def look(app: App) -> tuple[Glance, str | None]:
        from treadle.worker.leader import ID, leader_of

        [row] = await app.storage.get([ID])
        return await app.queues.glance(), leader_of(row)

    seen, leader = target.run(look)
    found = seen.workers
    if json_:
        document(
            [
                {
                    "worker": each.worker,
                    "host": each.host,
                    "pid": each.pid,
                    "queues": list(each.queues),
                    "slots": each.slots,
                    "running": each.running,
                    "uptime": round(each.uptime, 3),
                    "leads": each.worker == leader,
                    "draining": each.draining or None,
                    "labels": dict(each.labels),
                    "resources": {name: {"has": has, "used": used} for name, has, used in each.resources},
                }
                for each in found
            ]
        )
        return
    placed = any(each.labels or each.resources for each in found)
    rows = [
        (
            _name(each, leader),
            each.host,
            str(each.pid),
            ", ".join(each.queues),
            f"{each.running}/{each.slots}",
            lasts(each.uptime),
            *((_labels(each), _resources(each)) if placed else ()),
        )
        for each in found
    ]
    columns = ("worker", "host", "pid", "queues", "running", "up for", *(("labels", "used") if placed else ()))
    table(columns, rows, "no worker has sent a heartbeat recently", right=("pid", "running"))


def _labels(worker: Presence) -> str:
    return ", ".join(label_text(*each) for each in worker.labels)


def _resources(worker: Presence) -> str:
    return ", ".join(f"{name} {used:,}/{has:,}" for name, has, used in worker.resources)


def _name(worker: Presence, leader: str | None) -> str:
    facts = ["leads"] if worker.worker == leader else []
    facts += [f"ends its running jobs: {worker.draining}"] if worker.draining else []
    return f"{worker.worker} ({'; '.join(facts)})" if facts else worker.worker


@click.command()
@targeted
@as_json
def stats(target: Target, json_: bool) -> None:
    """Count jobs by task and state."""
    found = target.run(lambda app: app.queues.stats())
    tasks: dict[tuple[str, str], dict[str, Any]] = {}
    for count in found.counts:
        fresh = {"task": count.task, "queue": count.queue, **dict.fromkeys(STATES, 0)}
        line = tasks.setdefault((count.task, count.queue), fresh)
        line[count.state] += count.jobs
    if json_:
        document(list(tasks.values()))
        return
    rows = [tuple(line.values()) for line in tasks.values()]
    table(("task", "queue", *STATES), [(row[0] or "(promise)", *row[1:]) for row in rows], "no jobs", right=STATES)
    running = sum(each.running for each in found.workers)
    slots = sum(each.slots for each in found.workers)
    note(f"{plural(len(found.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")
