"""The command `treadle top`: chooses between the live screen and plain tables.

Textual is imported only for the live screen, so every other command starts without it.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from treadle.cli.listing import again, every
from treadle.cli.output import OK, USAGE, Stop, note
from treadle.cli.target import Target, targeted

if TYPE_CHECKING:
    from treadle.app import App

LEAST = 0.5  # s between two refreshes of the live screen: a person reads no faster


@click.command()
@targeted
@every
@click.option("--once", is_flag=True, help="Print the tables once, then exit.")
def top(target: Target, every_: float, times: int | None, once: bool) -> None:
    """Show queues, failures, limits and workers on a live screen, with keys to act; q quits.

    If there is no terminal, or with --once or --times, the command prints plain tables of queues and workers. The live
    screen needs Textual: pip install 'textual>=8'. Jobs are counted up to 10,000: "10,000+" means at least as many.
    `treadle queues list` counts all of them.
    """
    if once and times is not None:
        raise Stop(USAGE, "give --once or --times, not both")
    if once or times is not None or not _has_terminal():
        _plain(target, every_, 1 if once else times)
    elif find_spec("textual") is None:
        note("treadle: these are plain tables; for the live screen: pip install 'textual>=8'")
        _plain(target, every_, None)
    else:
        _live(target, every_)


def _has_terminal() -> bool:
    """Whether a full screen can be shown and keys can be read."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _plain(target: Target, every_: float, times: int | None) -> None:
    from treadle.contrib.top import plain
    from treadle.server.overview import Look, compose, counted

    async def look(app: App) -> None:
        glance = await app.queues.glance()
        counts = await counted(app.storage, glance)
        plain.show(compose(Look(glance=glance, exact=counts.exact, counts=counts.counts)))

    again(target, look, every_, times)


def _live(target: Target, every_: float) -> None:
    from treadle.contrib.top.screens import run

    try:
        target.run(lambda app: run(app, max(LEAST, every_), target.url))
    except KeyboardInterrupt:
        raise Stop(OK) from None
