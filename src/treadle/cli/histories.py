"""`treadle jobs export` writes the histories of durable jobs as JSON lines, and `treadle jobs replay` runs code over
them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from treadle.admin.histories import histories, line
from treadle.cli.app_loader import find_app
from treadle.cli.filters import UNFINISHED, Filters, filtered
from treadle.cli.options import number, required_app
from treadle.cli.output import FAILED, OK, complain, data, note, plural
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


@click.command()
@required_app
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--pdb", is_flag=True, help="Stop in the debugger where a history ends, or at its mismatch.")
def replay(app: str, file: str, pdb: bool) -> int:
    """Run the functions of MODULE:APP over the histories in FILE, which `treadle jobs export` has written.

    A recorded step returns its recorded value; no step is run, and nothing is stored. The exit code is 1 if the code
    takes other steps than a history.
    """
    from treadle.core.errors import StepMismatch
    from treadle.testing import replay as run_over

    loaded = find_app(app)
    failed = 0
    for text in Path(file).read_text("utf-8").splitlines():
        if text.strip():
            try:
                [one] = asyncio.run(run_over(loaded, [text], stopped=_debug if pdb else None))
            except StepMismatch as error:
                failed += 1
                complain(str(error))
            else:
                end = "to its end" if one.stopped_at is None else f"up to {one.stopped_at!r}"
                data(f"{one.id} {one.task}: {plural(len(one.taken), 'recorded step')}, {end}")
    return FAILED if failed else OK


def _debug(place: object, frame: FrameType) -> None:
    """Open a debugger in the function of the user."""
    from pdb import Pdb

    note(f"the history ends at {place!r}" if isinstance(place, str) else str(place))
    debugger = Pdb()
    debugger.reset()
    debugger.interaction(frame, None)
