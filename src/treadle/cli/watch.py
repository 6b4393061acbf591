"""What several commands have: looking again and again until Ctrl-C, and a pair of pause and resume.

Without it each group of commands would word them by itself, and they would drift apart.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.output import OK, Stop, note, seconds
from treadle.cli.target import Target, targeted

if TYPE_CHECKING:
    from treadle.app import App

Look = Callable[["App"], Awaitable[None]]


class Listing(click.Group):
    """A group that lists when no command is given: `treadle queues --app x` is `treadle queues list --app x`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def every(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add how often to look, and how many times."""
    times = click.option("--times", type=click.IntRange(1), help="Stop after so many looks.")
    pause = click.option(
        "--every", "every_", type=seconds, metavar="SECONDS", default=2.0, show_default=True, help="Between two looks."
    )
    return pause(times(command))


def again(target: Target, look: Look, every_: float, times: int | None) -> None:
    """Look, on a screen of its own, until it has been so many times, or Ctrl-C."""

    async def watch(app: App) -> None:
        looks = 0
        while times is None or looks < times:
            if looks:
                await asyncio.sleep(every_)
            await look(app)
            looks += 1

    try:
        target.run(watch)
    except KeyboardInterrupt:
        raise Stop(OK) from None


def clear() -> None:
    """An empty screen, where there is one."""
    if sys.stdout.isatty():
        click.clear()


def pausable(group: click.Group, what: str, room: Callable[[App], Any], pause_help: str, resume_help: str) -> None:
    """Give a group the commands `pause NAME` and `resume NAME`; `room` is the part of the app that does it."""

    @group.command("pause", help=pause_help)
    @targeted
    @click.argument("name")
    def pause(target: Target, name: str) -> None:
        target.run(lambda app: room(app).pause(name))
        note(f"{what} {name!r} is paused; `treadle {group.name} resume {name}` opens it again")

    @group.command("resume", help=resume_help)
    @targeted
    @click.argument("name")
    def resume(target: Target, name: str) -> None:
        target.run(lambda app: room(app).resume(name))
        note(f"{what} {name!r} is open")
