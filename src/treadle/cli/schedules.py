"""`treadle schedules`: lists, pauses, resumes, triggers and deletes schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treadle.cli.group import Group
from treadle.cli.limits import pausable
from treadle.cli.listing import listed, picked
from treadle.cli.output import age, as_json, data, iso, note
from treadle.cli.target import Target, audited, targeted
from treadle.core.clock import wall
from treadle.core.errors import error_line

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.scheduling import Schedule

COLUMNS = ("schedule", "when", "task", "next", "catch up", "overlap", "state", "last")


@click.group(cls=Group, default="list")
def schedules() -> None:
    """List and change schedules."""


@schedules.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """List each schedule with its next time, its last job, and its last error."""
    schedules, now = target.run(lambda app: app.schedules.list()), wall()
    times = [None if schedule.next_at is None else schedule.next_at.timestamp() for schedule in schedules]
    plain = [
        {
            "schedule": schedule.name,
            "when": schedule.timing,
            **picked(schedule, "task", "catch_up", "overlap", "paused", "last", "error"),
            "next_at": iso(time),
        }
        for schedule, time in zip(schedules, times, strict=True)
    ]
    rows = [
        (
            schedule.name,
            schedule.timing,
            schedule.task,
            age(time, now),
            schedule.catch_up,
            schedule.overlap,
            _state(schedule),
            schedule.last,
        )
        for schedule, time in zip(schedules, times, strict=True)
    ]
    listed(json_, plain, COLUMNS, rows, "no schedules are stored; a worker stores those of its app when it starts")


def _state(schedule: Schedule) -> str:
    if schedule.error is not None:
        return f"failed: {error_line(schedule.error)}"
    return "paused" if schedule.paused else "on"


pausable(
    schedules,
    "schedule",
    lambda app: app.schedules,
    pause_help="Enqueue no jobs of a schedule until it is resumed.",
    resume_help="Resume a schedule from now on; ticks during the pause are skipped.",
)


@schedules.command()
@targeted
@click.argument("name")
def trigger(target: Target, name: str) -> None:
    """Enqueue one job of a schedule now and print its id. A schedule that is declared in code needs --app."""

    async def act(app: App) -> str:
        async with audited(app, "schedule.trigger", name) as receipt:
            id = (await app.schedules.trigger(name)).id
            receipt.ids = [id]
            return id

    data(target.run(act))


@schedules.command()
@targeted
@click.argument("name")
def delete(target: Target, name: str) -> None:
    """Delete a schedule; its jobs stay. If code declares it, the next worker that starts with that code restores it."""

    async def act(app: App) -> None:
        async with audited(app, "schedule.delete", name):
            await app.schedules.delete(name)

    target.run(act)
    note(f"deleted the schedule {name!r}")
