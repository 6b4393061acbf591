"""Options that several commands share, and how a command gets a list of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.output import USAGE, Stop, seconds
from treadle.core.errors import BadOption
from treadle.core.placement import amounts, labels_of
from treadle.worker.probes import Probes

if TYPE_CHECKING:
    from treadle.worker.fleet import Recycling

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


# --- replacing worker processes
#
# Options of `treadle worker` for replacing worker processes: after jobs, an age or a size, or when they are stuck.


SIZE: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
LEAST: Final = 16 * 2**20  # bytes; an empty process takes more, and would be replaced for ever
LEAST_STUCK: Final = 10.0  # s; a loop counts as stuck before that


def memory(text: str) -> int:
    """Parse a size: `512M`, `1.5G`, `2GiB`, or a number of bytes. Raises BadParameter."""
    match = SIZE.fullmatch(str(text).strip())
    count = 0 if match is None else round(float(match["count"]) * UNITS[match["unit"].upper()])
    if count < LEAST:
        raise click.BadParameter(f"expected a size of at least 16M, such as 512M or 1.5G; found {text!r}")
    return count


def _stuck(text: str) -> float:
    """Parse the seconds; 0 for `never`."""
    limit = 0.0 if text == "never" else seconds(text)
    if limit and limit < LEAST_STUCK:
        raise click.BadParameter(f"expected at least {LEAST_STUCK:g} seconds, or never; found {text!r}")
    return limit


def _age(text: str) -> float:
    age = seconds(text)
    if age < 1:
        raise click.BadParameter(f"expected at least 1 second; found {text!r}")
    return age


recycled = added(
    number(
        "--max-jobs",
        metavar="COUNT",
        help="Jobs after which a worker process is replaced, up to 10 % earlier. [default: no limit]",
    ),
    click.option(
        "--max-age",
        type=_age,
        metavar="SECONDS",
        help="Seconds after which a worker process is replaced, up to 10 % earlier. [default: no limit]",
    ),
    click.option(
        "--max-memory",
        type=memory,
        metavar="SIZE",
        help="Memory at which a worker process is replaced, such as 512M. [default: no limit]",
    ),
    duration("--drain", help="Seconds that running jobs get to finish when their process is replaced. [default: 1h]"),
    click.option(
        "--restart-stuck",
        type=_stuck,
        metavar="SECONDS",
        help="Seconds after which a worker process whose event loop does not answer is killed and restarted. "
        "`never` only reports it. [default: 300]",
    ),
)
NAMES: Final = ("max_jobs", "max_age", "max_memory", "drain", "restart_stuck")
EXCLUDE_RELOAD: Final = (
    *NAMES,
    "health",
    "health_file",
)  # a reload would replace their processes


def recycling_of(options: Mapping[str, Any]) -> Recycling | None:
    """The limits of these options; None without any of them."""
    from treadle.worker.fleet import Recycling

    limits = {name: options[name] for name in NAMES if options[name] is not None}
    if limits.get("restart_stuck") == 0:
        limits["restart_stuck"] = None
    return Recycling(**limits) if limits else None


def refuse_with(what: str, options: Mapping[str, Any]) -> None:
    """Raise Stop if one of the options, or one for probes, is given with something that excludes them."""
    name = excluding_reload(options)
    if name is not None:
        raise Stop(USAGE, f"{name} does not go with {what}")


def excluding_reload(options: Mapping[str, Any]) -> str | None:
    """The flag of the first given option that excludes --reload; None: there is none."""
    names = (name for name in EXCLUDE_RELOAD if options.get(name) is not None)
    return next((f"--{name.replace('_', '-')}" for name in names), None)


# --- the name of an app
#
# How a command takes the name of an app: an argument or --app, and --factory for a function that returns it.


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
