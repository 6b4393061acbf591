"""`treadle jobs export`: writes the histories of durable jobs as JSON lines, for `treadle.testing.replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treadle.admin.histories import histories, line
from treadle.cli.filters import UNFINISHED, Filters, filtered
from treadle.cli.options import number
from treadle.cli.output import data, note
from treadle.cli.target import Target, targeted

if TYPE_CHECKING:
    from treadle.app import App


@click.command()
@targeted
@filtered
@click.option("--running", is_flag=True, help="Only jobs that have not ended: the same as --state with their states.")
@click.option(
    "--payload",
    is_flag=True,
    help="Write arguments, results and step results in full. [default: values under names such as password or token "
    "are hidden]",
)
@number("--limit", "-n", help="Number of histories at most. [default: all]")
def export(target: Target, filters: Filters, running: bool, payload: bool, limit: int | None) -> None:
    """Write the histories of jobs with recorded steps to stdout, one JSON object a line.

    A test of the next version replays them: `await treadle.testing.replay(app, "histories.jsonl")`. The command only
    reads the storage.
    """
    if running and "state" in filters:
        raise click.UsageError("give --running or --state, not both")
    if running:
        filters["state"] = UNFINISHED
    written = 0

    async def write(app: App) -> None:
        nonlocal written
        redactor = app._core.redactor
        exported = (
            histories(app._core, filters, limit) if payload else histories(app._core, filters, limit, redactor.row)
        )
        async for history in exported:
            data(line(history, None if payload else redactor.of(history.task)))
            written += 1

    target.run(write, look=True)
    note(
        f"{written:,} {'history' if written == 1 else 'histories'} exported" if written else "no job has recorded steps"
    )
