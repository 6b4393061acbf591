"""Options of `treadle worker` for replacing worker processes: after jobs, an age or a size, or when they are stuck."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.options import added, duration, number
from treadle.cli.output import USAGE, Stop, seconds

if TYPE_CHECKING:
    from treadle.worker.fleet import Recycling

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
