"""The options that select jobs: by state, task, queue and more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from treadle.cli.output import long_ago

Filters = dict[str, Any]
NAMES = ("state", "task", "queue", "workflow", "parent", "label", "status", "search", "since", "before")
UNFINISHED = ("waiting", "ready", "running")
FINAL = ("succeeded", "failed", "cancelled")


def states(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    names = [part for text in texts for part in text.split(",") if part]
    for name in names:
        if name not in (*UNFINISHED, *FINAL):
            raise click.BadParameter(f"expected one or more of {', '.join((*UNFINISHED, *FINAL))}; found {name!r}")
    return tuple(names)


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filter options to a command, which receives those that were given as `filters`."""

    @click.option("--state", "-s", multiple=True, callback=states, help="One or more states, such as ready,running.")
    @click.option("--task", "-t", help="Name of the task.")
    @click.option("--queue", "-q", help="Name of the queue.")
    @click.option("--workflow", metavar="ID", help="Id of the first job of the workflow.")
    @click.option("--parent", metavar="ID", help="Id of the parent job.")
    @click.option("--label", "-l", help="Label of the job.")
    @click.option(
        "--status",
        type=click.Choice(["queued", "scheduled", "blocked"]),
        help="Kind of ready job: queued (due), scheduled (not due yet) or blocked (by a limit).",
    )
    @click.option(
        "--search",
        metavar="TEXT",
        help="A text in task, arguments, error, labels or key, or the beginning of an id; case does not matter.",
    )
    @click.option(
        "--since",
        type=long_ago,
        metavar="MOMENT",
        help="Jobs created at this time (ISO 8601) or later, or not longer ago than this (2h, 1d).",
    )
    @click.option(
        "--before",
        type=long_ago,
        metavar="MOMENT",
        help="Jobs created before this time (ISO 8601), or longer ago than this (2h, 1d).",
    )
    @functools.wraps(command)
    def with_filters(**options: Any) -> Any:
        typed = {name: options.pop(name) for name in NAMES}
        return command(filters={name: value for name, value in typed.items() if value not in (None, ())}, **options)

    return with_filters
