"""How a command takes the name of an app: an argument or --app, and --factory for a function that returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

Command = Callable[..., Any]
FACTORY: Final = "treadle.factory"  # a key of click's `meta`


def _remember(ctx: click.Context, param: click.Parameter, is_factory: bool) -> None:
    ctx.meta[FACTORY] = is_factory


def _named(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """The name of the app; with --factory, the name of the function that returns it."""
    if not ctx.meta.get(FACTORY) or ctx.resilient_parsing:
        return name
    if name is None or ":" not in name:
        raise click.UsageError(f"--factory expects MODULE:FUNCTION, found {name or 'no app'}")
    return name if name.endswith("()") else f"{name}()"


_factory = click.option(
    "--factory",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="MODULE:APP names a function without arguments that returns the app, as MODULE:FUNCTION() does.",
)


def optional_app(command: Command) -> Command:
    """Add the argument [MODULE:APP] and --factory."""
    return click.argument("app", metavar="[MODULE:APP]", required=False, callback=_named)(_factory(command))


def required_app(command: Command) -> Command:
    """Add the argument MODULE:APP and --factory."""
    return click.argument("app", metavar="MODULE:APP", callback=_named)(_factory(command))


def app_option(help: str) -> Callable[[Command], Command]:
    """Add the option --app and --factory."""
    return lambda command: click.option("--app", metavar="MODULE:APP", callback=_named, help=help)(_factory(command))
