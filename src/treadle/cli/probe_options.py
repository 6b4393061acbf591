"""Options of the commands whose health other programs check: `--health` and `--health-file`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from treadle.cli.output import USAGE, Stop
from treadle.core.errors import BadOption
from treadle.worker.probes import Probes

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


def probed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add both options to a command."""
    return listening(filing(command))


def probes_of(health: str | None, health_file: Path | None) -> Probes:
    """The probes of these options. Raises Stop."""
    try:
        return Probes(health, file=health_file)
    except BadOption as error:
        raise Stop(USAGE, f"--health: {error.problem}") from None
