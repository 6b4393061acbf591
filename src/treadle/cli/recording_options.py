"""The options of the commands that run workers, for what is recorded of each job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def recording(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --capture-logs and --no-metrics to a command."""
    logs = click.option(
        "--capture-logs",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        help="Lowest level of the log lines that are kept for the history of each job. [default: none are kept]",
    )
    metrics = click.option("--no-metrics", is_flag=True, help="Store no counts and times of jobs.")
    return logs(metrics(command))
