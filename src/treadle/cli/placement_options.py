"""The options of the commands that run workers, for their labels, resources and roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from treadle.cli.output import USAGE, Stop
from treadle.core.errors import BadOption
from treadle.core.placement import amounts, labels_of

ROLES: Final = ("leader", "follower", "auto")


def _labels(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `gpu=a100` and `ssd` -> {"gpu": "a100", "ssd": ""}."""
    try:
        return labels_of(texts)
    except BadOption as error:
        raise click.BadParameter(error.problem) from None


def _resources(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Parse `memory_mb=8192` -> {"memory_mb": 8192}."""
    found: dict[str, int] = {}
    for each in texts:
        name, _, amount = each.partition("=")
        if not amount.isascii() or not amount.isdecimal() or name in found:
            raise click.BadParameter(f"expected each resource once, as in memory_mb=8192; found {each!r:.80}")
        found[name] = int(amount[:20])
    try:
        return amounts(found, "resources")
    except BadOption as error:
        raise click.BadParameter(error.problem) from None


def placed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --label and --resource to a command."""
    labels = click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="NAME[=VALUE]",
        envvar="TREADLE_LABELS",
        callback=_labels,
        help="Label of the workers, such as gpu=a100; they run the tasks whose `requires` it meets. Can be repeated.",
    )
    resources = click.option(
        "--resource",
        "resources",
        multiple=True,
        metavar="NAME=AMOUNT",
        envvar="TREADLE_RESOURCES",
        callback=_resources,
        help="Resource of each worker process, such as memory_mb=8192; jobs use it as their tasks say (`uses`). Can "
        "be repeated.",
    )
    return labels(resources(command))


def roles(text: str) -> list[str]:
    """Parse a list such as `leader,follower,follower`. Raises Stop."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in ROLES:
            raise Stop(USAGE, f"--roles: expected some of {', '.join(ROLES)}, separated by commas, found {name!r}")
    if not names:
        raise Stop(USAGE, "--roles: expected a list such as leader,follower,follower")
    return names
