"""`treadle jobs rerun` and `fork`: run a job again from one of its stored steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treadle.cli.enqueue import value_of
from treadle.cli.filters import hinting, stored_ids
from treadle.cli.output import data
from treadle.cli.target import Target, audited, pairs, targeted

if TYPE_CHECKING:
    from treadle.app import App

from_step = click.option(
    "--from-step",
    metavar="STEP",
    help="Stored step from which it runs again; steps before it keep their results. [default: from the start]",
)


@click.command()
@targeted
@click.argument("id")
@from_step
def rerun(target: Target, id: str, from_step: str | None) -> None:
    """Run a job again from one of its stored steps. It keeps its id; later steps are deleted, and open children of
    it are cancelled first.

    The steps are those that the dashboard and `treadle jobs export` show. A running job must be paused first.
    """

    async def act(app: App) -> None:
        [stored] = await stored_ids(app, [id])
        await hinting(app, id, app.jobs.get(stored))
        async with audited(app, "job.rerun", stored, f"from_step={from_step}") as receipt:
            await app.jobs.within((), receipt).rerun(stored, from_step=from_step)
        data(f"{stored} runs again")

    target.run(act)


@click.command()
@targeted
@click.argument("id")
@click.argument("args", nargs=-1)
@click.option("--kw", multiple=True, metavar="NAME=VALUE", help="Argument by name; the value is parsed like ARGS.")
@from_step
def fork(target: Target, id: str, args: tuple[str, ...], kw: tuple[str, ...], from_step: str | None) -> None:
    """Enqueue a new job with the task and the options of job ID that continues from one of its stored steps, and print
    its id. Job ID does not change.

    ARGS are JSON values, and any other text is a string; without ARGS and --kw the arguments are those of job ID.
    """
    from treadle.admin import typed_call

    async def act(app: App) -> None:
        [stored] = await stored_ids(app, [id])
        row = await hinting(app, id, app.jobs.get(stored))
        call = None
        if args or kw:
            named = {name: value_of(text) for name, text in pairs(kw, "--kw").items()}
            call = typed_call(app._core.tasks, row.job.task, [value_of(text) for text in args], named)
        async with audited(app, "job.fork", stored, f"from_step={from_step}") as receipt:
            positional, keywords = call or (None, None)
            job = await app.jobs.fork(stored, from_step=from_step, args=positional, kwargs=keywords)
            receipt.ids = [job.id]
        data(job.id)

    target.run(act)
