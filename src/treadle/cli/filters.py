"""The options that select jobs: by state, task, queue and more."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from treadle.cli.output import FAILED, Stop, long_ago
from treadle.cli.protocols import all_protocols

if TYPE_CHECKING:
    from treadle.app import App

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


T = TypeVar("T")


# --- ids
#
# Reads typed job ids: Treadle's own, or the 26 characters of a `jobId` of the delayed protocol. Suggests one for an
# id that is typed in part, or wrongly.


LEAST: Final = 4  # characters that a person must type before ids are suggested
NEWEST: Final = 500  # newest jobs whose ids are compared with the typed one
LOOKED: Final = 10_000  # newest jobs that are searched for ids that begin with the typed text
SUGGESTED: Final = 3


async def stored_ids(app: App, typed: Sequence[str]) -> list[str]:
    """The stored ids. An id that exists as typed wins, because a program may choose one that looks like a `jobId`."""
    meant = [next(filter(None, (guest.id_of(text) for guest in all_protocols())), None) for text in typed]
    if not any(meant):
        return list(typed)
    rows = await app.storage.get(typed)
    return [text if row is not None else other or text for text, row, other in zip(typed, rows, meant, strict=True)]


async def hinting(app: App, typed: str, look: Awaitable[T]) -> T:
    """The result of a look at one job. Raises Stop, with the ids that may be meant, if the id is unknown."""
    from treadle.core.errors import StorageError, UnknownJob

    try:
        return await look
    except UnknownJob as error:
        try:
            near = await _near(app, typed)
        except StorageError:
            near = []
        if not near:
            raise
        raise Stop(FAILED, f"{error}; did you mean {' or '.join(near)}?") from None


async def _near(app: App, typed: str) -> list[str]:
    """The ids that begin with the typed text, else the most similar one of the newest jobs."""
    if len(typed) < LEAST:
        return []
    matches = await app.jobs.list(search=typed, scan=LOOKED, limit=100)
    begun = [row.id for row in matches.records if row.id.startswith(typed)]
    if begun:
        return begun[:SUGGESTED]
    newest = await app.jobs.list(limit=NEWEST)
    return get_close_matches(typed, [row.id for row in newest.records], n=1, cutoff=0.85)
