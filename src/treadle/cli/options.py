"""Options that several commands share, and how a command gets a list of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from treadle.cli.output import USAGE, Stop, seconds
from treadle.core.errors import BadOption
from treadle.core.placement import amounts, labels_of
from treadle.worker.probes import Probes

Command = Callable[..., Any]
ROLES: Final = ("leader", "follower", "auto")
LEVELS: Final = ("debug", "info", "warning", "error")


def added(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Add these options to a command, in this order in its help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def duration(*flags: str, **how: Any) -> Callable[[Command], Command]:
    """An option that takes seconds: 30, 1.5, 5m, 2h or 1d."""
    return click.option(*flags, type=seconds, metavar="SECONDS", **how)


def number(*flags: str, **how: Any) -> Callable[[Command], Command]:
    """An option that takes a number of 1 or more."""
    return click.option(*flags, type=click.IntRange(1), **how)


def several(*flags: str, **how: Any) -> Callable[[Command], Command]:
    """An option that may be given several times."""
    return click.option(*flags, multiple=True, **how)


storage_url = click.option(
    "--url",
    metavar="URL",
    help="Storage URL, if no app is given. [default: TREADLE_URL, else treadle.db in this directory]",
)

# --- health


listening = click.option(
    "--health",
    metavar="[HOST:]PORT",
    envvar="TREADLE_HEALTH",
    help="Answer GET /livez and /readyz on this port, of workers also /metrics; 8080 for this machine only, :8080 for "
    "every address.",
)
filing = click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TREADLE_HEALTH_FILE",
    metavar="PATH",
    help="File to replace once a second while the process is alive, for probes that run a command.",
)
probed = added(listening, filing)


def probes_of(health: str | None, health_file: Path | None) -> Probes:
    """The probes of these options. Raises Stop."""
    try:
        return Probes(health, file=health_file)
    except BadOption as error:
        raise Stop(USAGE, f"--health: {error.problem}") from None


# --- logs and records


logging = added(
    click.option("--log-level", type=click.Choice(LEVELS), default="info"),
    click.option("--log-json", is_flag=True, help="Log one JSON object per line."),
)
recording = added(
    click.option(
        "--capture-logs",
        type=click.Choice(LEVELS, case_sensitive=False),
        help="Lowest level of the log lines that are kept for the history of each job. [default: none are kept]",
    ),
    click.option("--no-metrics", is_flag=True, help="Store no counts and times of jobs."),
)

# --- labels and resources


def _labels(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `gpu=a100` and `ssd` -> {"gpu": "a100", "ssd": ""}."""
    try:
        return labels_of(texts)
    except BadOption as error:
        raise click.BadParameter(error.problem) from None


def _resources(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Parse `memory_mb=8192` -> {"memory_mb": 8192}."""
    resources: dict[str, int] = {}
    for text in texts:
        name, _, amount = text.partition("=")
        if not amount.isascii() or not amount.isdecimal() or name in resources:
            raise click.BadParameter(f"expected each resource once, as in memory_mb=8192; found {text!r:.80}")
        resources[name] = int(amount[:20])
    try:
        return amounts(resources, "resources")
    except BadOption as error:
        raise click.BadParameter(error.problem) from None


placed = added(
    several(
        "--label",
        "labels",
        metavar="NAME[=VALUE]",
        envvar="TREADLE_LABELS",
        callback=_labels,
        help="Label of the workers, such as gpu=a100; they run the tasks whose `requires` it meets. Can be repeated.",
    ),
    several(
        "--resource",
        "resources",
        metavar="NAME=AMOUNT",
        envvar="TREADLE_RESOURCES",
        callback=_resources,
        help="Resource of each worker process, such as memory_mb=8192; jobs use it as their tasks say (`uses`). Can "
        "be repeated.",
    ),
)

# --- roles


def roles(text: str) -> list[str]:
    """Parse a list such as `leader,follower,follower`. Raises Stop."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in ROLES:
            raise Stop(USAGE, f"--roles: expected some of {', '.join(ROLES)}, separated by commas, found {name!r}")
    if not names:
        raise Stop(USAGE, "--roles: expected a list such as leader,follower,follower")
    return names
