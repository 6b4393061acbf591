"""How commands list: as a table or as JSON, one page at a time, once or again and again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import duration, number
from treadle.cli.output import OK, Stop, document, note, table
from treadle.cli.target import Target

if TYPE_CHECKING:
    from treadle.app import App


def listed(
    json_: bool,
    plain: object,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    empty: str,
    right: Sequence[str] = (),
) -> None:
    """Print `plain` as JSON, or the rows as a table; `empty` if there are none."""
    if json_:
        document(plain)
    else:
        table(columns, rows, empty, right)


def picked(row: object, *names: str, **others: object) -> dict[str, object]:
    """A row for JSON: some of its attributes, then others."""
    return {**{name: getattr(row, name) for name in names}, **others}


def paged(rows: str, size: int, most: int, least: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --limit and --cursor to a command that lists one page of these rows."""
    help = f"Number of {rows} per page."

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        limit = click.option(
            "--limit", "-n", type=click.IntRange(least, most), default=size, show_default=True, help=help
        )
        return limit(click.option("--cursor", help="Cursor printed at the end of the previous page.")(command))

    return decorate


def next_page(cursor: str | None, looked: str = "") -> None:
    """Print how to list the next page, and how far this one looked."""
    if cursor is not None:
        note(f"next page: --cursor {cursor}{looked}")


def every(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --every and --times to a command."""
    times = number("--times", help="Refresh this many times, then exit.")
    pause = duration("--every", "every_", default=2.0, show_default=True, help="Seconds between refreshes.")
    return pause(times(command))


def again(target: Target, look: Callable[[App], Awaitable[None]], every_: float, times: int | None) -> None:
    """Call `look` every `every_` seconds, `times` times or until Ctrl-C."""

    async def watch(app: App) -> None:
        looks = 0
        while times is None or looks < times:
            if looks:
                await asyncio.sleep(every_)
            await look(app)
            looks += 1

    try:
        target.run(watch)
    except KeyboardInterrupt:
        raise Stop(OK) from None


def clear() -> None:
    """Clear the screen of a terminal."""
    if sys.stdout.isatty():
        click.clear()
