"""`treadle limits`: lists, sets, pauses and removes limits. A change applies to the next claim and the next enqueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from treadle.admin import dropped
from treadle.cli.group import Group
from treadle.cli.listing import listed, picked
from treadle.cli.options import duration
from treadle.cli.output import FAILED, Stop, as_json, note
from treadle.cli.target import Target, audited, targeted
from treadle.core.clock import moment_text
from treadle.core.command_lines import command
from treadle.core.defaults import MAX_COUNT
from treadle.core.limit_model import Limit, LimitUse
from treadle.core.ranges import FAR
from treadle.core.similar_names import near

if TYPE_CHECKING:
    from treadle.app import App

PARTS = ("slots", "rate", "per", "how", "burst", "hold", "max_waiting", "when_full")
COLUMNS = ("limit", "slots", "rate", "how", "held while", "used", "starts", "blocked", "max waiting", "state")


@click.group(cls=Group, default="list")
def limits() -> None:
    """List and change limits: how many jobs may run at once, start within a period, or wait in a queue."""


@limits.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """List each limit, and each partition that is in use."""
    uses = target.run(lambda app: app.limits.list())
    rows = [
        (
            use.key,
            use.rule.slots,
            None if use.rule.rate is None else f"{use.rule.rate:,} per {use.rule.per:g} s",
            use.rule.how if use.rule.rate is not None else None,
            use.rule.hold,
            use.used,
            None if use.rule.rate is None else use.starts,
            use.blocked,
            bound_words(_own(use).max_waiting, _own(use).when_full),
            _state(use),
        )
        for use in uses
    ]
    plain = [_plain(use) for use in uses]
    listed(json_, plain, COLUMNS, rows, "no limits", right=("slots", "used", "starts", "blocked"))


def _plain(use: LimitUse) -> dict[str, object]:
    bound = _own(use)
    return {
        "limit": use.key,
        "rule": use.rule.name,
        **picked(use.rule, "slots", "rate", "per", "how", "burst", "hold"),
        "max_waiting": bound.max_waiting,
        "when_full": bound.when_full if bound.max_waiting is not None else None,
        **picked(use, "used", "blocked", "starts", "next_start", "declared"),
        "pauses": [picked(pause, "why", "until") for pause in use.pauses],
        "slots_when_resumed": use.behind.slots if use.behind is not None else None,
    }


def _own(use: LimitUse) -> Limit:
    """The rule that was set or declared: a pause does not lift its bound."""
    return use.behind or use.rule


def bound_words(max_waiting: int | None, when_full: str | None) -> str:
    """The bound of a queue in words; "" without one."""
    return "" if max_waiting is None else f"{max_waiting:,}, {(when_full or '').replace('_', ' the ', 1)}"


def _state(use: LimitUse) -> str:
    if not use.pauses and use.next_start is not None:
        return f"rate used up, next start at {moment_text(use.next_start)}"
    if not use.pauses:
        return "declared in code" if use.declared else ""
    state = "paused" if any(pause.why == "paused" for pause in use.pauses) else f"rests{until_words(use)}"
    return state if use.behind is None or use.behind.slots is None else f"{state}, then {use.behind.slots} slots"


@limits.command("set")
@targeted
@click.argument("name")
@click.option(
    "--slots",
    type=click.IntRange(0, MAX_COUNT),
    help="Number of jobs that may run at the same time; 0 pauses the limit.",
)
@click.option("--rate", type=click.IntRange(1, MAX_COUNT), help="Number of jobs that may start in --per seconds.")
@duration("--per", default=1.0, show_default=True, help="Seconds in which --rate jobs may start.")
@click.option(
    "--how",
    type=click.Choice(["window", "bucket"]),
    default="window",
    help="How starts are counted: window (exact), or bucket (see --burst). [default: window]",
)
@click.option(
    "--burst", type=click.IntRange(1, MAX_COUNT), help="With --how bucket: number of jobs that may start in one burst."
)
@click.option(
    "--hold",
    type=click.Choice(["running", "ended"]),
    default="running",
    help="When a job frees its slot: after each run, or when it has ended. [default: running]",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(1, MAX_COUNT),
    help="Of a queue (queue:NAME): number of jobs that may wait to be started. [default: any number]",
)
@click.option(
    "--when-full",
    type=click.Choice(["refuse", "drop_oldest", "drop_lowest"]),
    help="With --max-waiting: refuse a call that enqueues more, or cancel the oldest jobs, or those of a lower "
    "priority. [default: refuse]",
)
def set_(target: Target, name: str, **options: Any) -> None:
    """Add or replace the rule of a limit. Jobs name it as NAME or NAME:partition; queue:mail limits the queue mail.

    A rule is replaced whole: give all of --slots, --rate and --max-waiting that it must have.
    """
    parts = {part: options[part] for part in PARTS if options[part] is not None}
    rule = Limit(name, **parts)
    if rule.empty:
        instead = f"{command('limits', 'remove', name)} removes the rule"
        raise click.UsageError(f"give --slots, --rate or --max-waiting; {instead}")
    context = click.get_current_context()
    named = {option for option in options if context.get_parameter_source(option) is ParameterSource.COMMANDLINE}

    async def act(app: App) -> tuple[str | None, LimitUse | None]:
        details = ", ".join(f"{option}={value}" for option, value in parts.items())
        before = await app.limits.list(use=False)
        async with audited(app, "limit.set", name, details):
            await app.limits.set(rule)
        return dropped(before, rule, named), await use_of(app, name)

    lost, use = target.run(act)
    note(f"limit {name!r} is set")
    if lost is not None:
        note(lost)
    if use is not None and use.pauses:
        note(still(use))


@limits.command()
@targeted
@click.argument("name")
def remove(target: Target, name: str) -> None:
    """Remove the rule of a limit. Jobs that it blocks are queued again, unless the limit is paused."""

    async def act(app: App) -> tuple[LimitUse, LimitUse | None]:
        before = await use_of(app, name)
        if before is None:
            guess = near(name, [use.key for use in await app.limits.list(use=False)]) or ";"
            raise Stop(FAILED, f"there is no limit {name!r}{guess} `treadle limits` lists them")
        async with audited(app, "limit.delete", name):
            await app.limits.set(Limit(name))
        return before, await use_of(app, name)

    before, after = target.run(act)
    if before.pauses and before.behind is None:
        note(f"limit {name!r} has no rule")
    else:
        note(f"the rule of limit {name!r} is removed")
    if before.declared:
        overrides = command("limits", "set", name)
        note(f"code declares the rule: a worker that starts stores it again; {overrides} overrides it")
    if after is not None and after.pauses:
        note(still(after))


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


pausable(
    limits,
    "limit",
    lambda app: app.limits,
    resume_help="Resume a paused limit, with its rule.",
    pause_help="Start no job that names this limit until it is resumed. Its rule is kept.",
)
