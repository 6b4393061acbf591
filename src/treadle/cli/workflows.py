"""`treadle jobs workflows` lists workflows; `treadle jobs workflow` shows the jobs of one, also as a diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from treadle.admin import Graph, WorkflowPage, lines_of, mermaid_of
from treadle.cli.filters import states, stored_ids
from treadle.cli.listing import listed, next_page, paged, picked
from treadle.cli.options import number
from treadle.cli.output import age, as_json, data, document, iso, note, plural, table
from treadle.cli.target import Target, targeted
from treadle.core.clock import moment_text

if TYPE_CHECKING:
    from treadle.app import App

COLUMNS = ("id", "state", "task", "queue", "jobs", "done", "failed", "running", "created")
COUNTS = ("jobs", "done", "failed", "running")
STEPS = ("step", "task", "state", "jobs", "after", "id", "note")


@click.command()
@targeted
@click.option("--state", "-s", multiple=True, callback=states, help="States of the first job, such as failed,running.")
@click.option("--queue", "-q", help="Name of the queue of the first job.")
@paged("workflows", 20, 100)
@as_json
def workflows(
    target: Target, state: tuple[str, ...], queue: str | None, limit: int, cursor: str | None, json_: bool
) -> None:
    """List one page of workflows, the newest first, with the number of their jobs."""
    page: WorkflowPage = target.run(
        lambda app: app.workflows.list(state=state or None, queue=queue, limit=limit, cursor=cursor)
    )
    now = target.app._core.now()
    plain = [
        {
            **picked(workflow, "id", "task", "queue", state=str(workflow.state)),
            **{name: iso(getattr(workflow, name)) for name in ("created_at", "ended_at")},
            **picked(workflow, *COUNTS, "capped"),
        }
        for workflow in page.workflows
    ]
    rows = [
        (
            *(workflow.id, str(workflow.state), workflow.task, workflow.queue),
            f"{workflow.jobs:,}+" if workflow.capped else workflow.jobs,
            *(workflow.done, workflow.failed, workflow.running),
            age(workflow.created_at, now),
        )
        for workflow in page.workflows
    ]
    listed(json_, plain, COLUMNS, rows, "no workflows", right=COUNTS)
    next_page(page.cursor, "" if page.scanned_to is None else f" (looked back to {moment_text(page.scanned_to)})")


@click.command()
@targeted
@click.argument("id")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid diagram.")
@number(
    "--fold",
    default=12,
    show_default=True,
    help="Number of jobs of one task and state above which they are drawn as one node.",
)
@as_json
def workflow(target: Target, id: str, mermaid: bool, fold: int, json_: bool) -> None:
    """Show the jobs of the workflow of a job: each step, and the steps that it waits for."""
    if mermaid and json_:
        raise click.UsageError("--mermaid and --json cannot be combined")

    async def look(app: App) -> Graph:
        [stored] = await stored_ids(app, [id])
        return await app.workflows.graph(stored, fold=fold, hide=app._core.redactor.row)

    graph = target.run(look)
    if json_:
        document(msgspec.to_builtins(graph))
    elif mermaid:
        data(mermaid_of(graph))
    else:
        rows = [
            (line.number, line.task, line.state, line.jobs, ", ".join(map(str, line.after)), line.id, line.note)
            for line in lines_of(graph)
        ]
        table(STEPS, rows, "no jobs", right=("step", "jobs"))
    if graph.capped:
        note(f"{graph.shown:,} of at least {plural(graph.total, 'job')} are shown")
