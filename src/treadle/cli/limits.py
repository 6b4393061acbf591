"""`treadle limits`: how many jobs may run at once, or start in a time. Rules act at the next claim, everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from treadle.cli.again import pausable
from treadle.cli.say import FAILED, Stop, as_json, document, note, seconds, table
from treadle.cli.target import Target, targeted

if TYPE_CHECKING:
    from treadle.app import App

COLUMNS = ("limit", "slots", "rate", "how", "held while", "used", "aside")


@click.group(invoke_without_command=True)
@click.pass_context
def limits(ctx: click.Context) -> None:
    """How many jobs may run at once, or start in a time."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@limits.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """Each rule, and each partition of one that is in use."""
    uses = target.run(lambda app: app.limits.list())
    if json_:
        document([
            {"limit": use.key, "rule": use.rule.name, "slots": use.rule.slots, "rate": use.rule.rate,
             "per": use.rule.per, "how": use.rule.how, "burst": use.rule.burst, "hold": use.rule.hold,
             "used": use.used, "aside": use.parked}
            for use in uses
        ])  # fmt: skip
        return
    rows = [
        (use.key, use.rule.slots, None if use.rule.rate is None else f"{use.rule.rate:,} per {use.rule.per:g} s",
         use.rule.how if use.rule.rate is not None else None, use.rule.hold, use.used, use.parked)
        for use in uses
    ]  # fmt: skip
    table(COLUMNS, rows, "no limits", right=("slots", "used", "aside"))


@limits.command("set")
@targeted
@click.argument("name")
@click.option("--slots", type=click.IntRange(0), help="How many may run at once; 0 is a pause.")
@click.option("--rate", type=click.IntRange(1), help="How many may start in --per seconds.")
@click.option("--per", type=seconds, metavar="SECONDS", default=1.0, show_default=True)
@click.option("--how", type=click.Choice(["window", "bucket"]), default="window", help="window [default]: exact.")
@click.option("--burst", type=click.IntRange(1), help="With bucket: so many at once.")
@click.option("--hold", type=click.Choice(["running", "ended"]), default="running", help="How long a slot is taken.")
def set_(
    target: Target, name: str, slots: int | None, rate: int | None, per: float, how: Literal["window", "bucket"],
    burst: int | None, hold: Literal["running", "ended"],
) -> None:  # fmt: skip
    """Add a rule, or replace it whole. Jobs name it, or `NAME:partition`; `queue:mail` holds for that queue."""
    from treadle.model import Limit

    if slots is None and rate is None:
        raise click.UsageError(f"give --slots or --rate; `treadle limits remove {name}` removes it")
    rule = Limit(name, slots=slots, rate=rate, per=per, how=how, burst=burst, hold=hold)
    target.run(lambda app: app.limits.set(rule))
    note(f"limit {name!r} is set")


@limits.command()
@targeted
@click.argument("name")
def remove(target: Target, name: str) -> None:
    """Remove a rule: jobs that stand aside for it come back."""
    from treadle.model import Limit

    async def act(app: App) -> None:
        if all(use.rule.name != name for use in await app.limits.list()):
            raise Stop(FAILED, f"there is no limit {name!r}; `treadle limits` lists them")
        await app.limits.set(Limit(name))

    target.run(act)
    note(f"limit {name!r} is removed")


pausable(
    limits, "limit", lambda app: app.limits, resume_help="Open a paused limit, with the rule it had.",
    pause_help="Start no job that names a limit, until it is resumed. Its rule stays as it is.",
)  # fmt: skip
