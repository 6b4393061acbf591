"""Shared parts of commands: refreshing until Ctrl-C, and the commands `pause` and `resume` of a group."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.audited import audited
from treadle.cli.output import OK, Stop, note, seconds
from treadle.cli.target import Target, targeted
from treadle.core.clock import moment_text
from treadle.core.command_lines import command

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.limit_model import LimitUse

Look = Callable[["App"], Awaitable[None]]


class Listing(click.Group):
    """A group whose default command is `list`: `treadle queues --app x` is `treadle queues list --app x`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def every(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --every and --times to a command."""
    times = click.option("--times", type=click.IntRange(1), help="Refresh this many times, then exit.")
    pause = click.option(
        "--every",
        "every_",
        type=seconds,
        metavar="SECONDS",
        default=2.0,
        show_default=True,
        help="Seconds between refreshes.",
    )
    return pause(times(command))


def again(target: Target, look: Look, every_: float, times: int | None) -> None:
    """Call `look` every `every_` seconds, `times` times or until Ctrl-C."""

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
    """Clear the screen of a terminal."""
    if sys.stdout.isatty():
        click.clear()


def pausable(group: click.Group, what: str, room: Callable[[App], Any], pause_help: str, resume_help: str) -> None:
    """Add the commands `pause NAME` and `resume NAME` to a group. `room` returns the part of the app to call."""

    @group.command("pause", help=pause_help)
    @targeted
    @click.argument("name")
    def pause(target: Target, name: str) -> None:
        async def act(app: App) -> None:
            async with audited(app, f"{what}.pause", name):
                await room(app).pause(name)

        target.run(act)
        note(f"{what} {name!r} is paused; {command(str(group.name), 'resume', name)} resumes it")

    @group.command("resume", help=resume_help)
    @targeted
    @click.argument("name")
    @click.option("--rest", is_flag=True, help="Also end a rest that a job requested with Defer(limit=).")
    def resume(target: Target, name: str, rest: bool) -> None:
        from treadle.core.ranges import FAR

        key = f"queue:{name}" if what == "queue" else name

        async def act(app: App) -> LimitUse | None:
            async with audited(app, f"{what}.resume", name, "with its rest" if rest else None):
                await room(app).resume(name)
                if rest:
                    await app.limits.hold(key, FAR, held=False)
            return await use_of(app, key)

        use = target.run(act)
        if use is None or not use.pauses:
            note(f"{what} {name!r} is not paused any more")
        else:
            note(f"{still(use)}; {command(str(group.name), 'resume', name, options=['--rest'])} ends the rest")


async def use_of(app: App, key: str) -> LimitUse | None:
    """The use of the limit, or of the partition of one; None: it has no rule and is not paused."""
    return next((use for use in await app.limits.list(use=False) if use.key == key), None)


def still(use: LimitUse) -> str:
    """Why a limit blocks every job, whatever its rule."""
    if any(pause.why == "paused" for pause in use.pauses):
        return f"the limit is still paused: {command('limits', 'resume', use.key)} resumes it"
    return f"the limit still rests{until_words(use)}, because a job requested that"


def until_words(use: LimitUse) -> str:
    """When the last pause ends; "" if no time is set."""
    ends = [pause.until for pause in use.pauses if pause.until is not None]
    return f" until {moment_text(max(ends))}" if ends else ""
