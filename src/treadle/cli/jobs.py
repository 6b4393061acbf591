"""`treadle jobs`: lists and shows jobs, and changes them by id or by filter."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from treadle.admin import query_of, text_of, words_of
from treadle.cli import job_view
from treadle.cli.estimates import repeated, show_estimate
from treadle.cli.filters import FINAL, UNFINISHED, Filters, filtered, hinting, stored_ids
from treadle.cli.group import Group, Lazy
from treadle.cli.listing import again, clear, every, listed, next_page, paged
from treadle.cli.output import FAILED, Stop, as_json, complain, data, document, facts, note, plural, table
from treadle.cli.progress import Bar
from treadle.cli.target import Target, audited, targeted
from treadle.core.clock import moment_text
from treadle.storage import check_stays

if TYPE_CHECKING:
    from treadle.admin.failure_groups import FailureGroups
    from treadle.app import App
    from treadle.core.query_model import Page

Act = Callable[..., Awaitable[int]]  # takes the app, and an id or filters

ORDERS = ["newest", "oldest", "ended", "queue", "due", "started"]


LAZY: Lazy = {
    "workflows": ("treadle.cli.workflows", "List one page of workflows, with the number of their jobs."),
    "workflow": ("treadle.cli.workflows", "Show the jobs of a workflow: each step, and the steps that it waits for."),
    "follow": ("treadle.cli.follow", "Print what a job writes to a stream, such as its log lines, until it ends."),
    "export": ("treadle.cli.histories", "Write the histories of jobs with recorded steps, one JSON object a line."),
    "replay": ("treadle.cli.histories", "Run the code of an app over exported histories, also in a debugger."),
    "rerun": ("treadle.cli.again", "Run a job again from one of its stored steps, or from its start."),
    "approvals": ("treadle.cli.approvals", "List one page of the open requests for approval, the oldest first."),
    "approve": ("treadle.cli.approvals", "Approve the request NAME of job ID. Without NAME, its only open request."),
    "reject": ("treadle.cli.approvals", "Reject the request NAME of job ID. Without NAME, its only open request."),
    "approval-link": (
        "treadle.cli.approvals:approval_link",
        "Print a link whose bearer may decide the request NAME of job ID once, without a token.",
    ),
    "fork": ("treadle.cli.again", "Enqueue a new job that continues from a stored step of another one."),
}


@click.group(cls=Group, lazy=LAZY)
def jobs() -> None:
    """List, show, explain, retry and cancel jobs and workflows."""


# --- looking


@jobs.command("list")
@targeted
@filtered
@paged("rows", 50, 10_000, least=0)
@click.option("--order", type=click.Choice(ORDERS), default="newest", show_default=True)
@click.option(
    "--scan",
    type=click.IntRange(1, 10_000_000),
    metavar="ROWS",
    help="Look at this many rows at most. [default: no bound; with --search 100,000, on Redis and over HTTP 10,000]",
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@every
@as_json
def list_(
    target: Target,
    filters: Filters,
    limit: int,
    cursor: str | None,
    order: Any,
    scan: int | None,
    watch: bool,
    every_: float,
    times: int | None,
    json_: bool,
) -> None:
    """List one page of jobs, newest first by default. --every and --times go with --watch."""

    async def look(app: App) -> Page:
        count = not json_ and scan is None and "search" not in filters
        return await app.jobs.list(cursor=cursor, limit=limit, order=order, count=count, scan=scan, **filters)

    async def show(app: App) -> None:
        page = await look(app)
        clear()
        _show(app, page)

    if watch and json_:
        raise click.UsageError("--watch prints for people: with --json, repeat the command instead")
    if watch:
        again(target, show, every_, times)
        return
    page = target.run(look)
    if json_:
        document([job_view.plain(target.app, row) for row in job_view.redacted(target.app, page.records)])
    else:
        _show(target.app, page)
    next_page(page.cursor, _looked(page))


def _looked(page: Page) -> str:
    """How far a bounded list looked."""
    if page.scanned is None:
        return ""
    back = "" if page.scanned_to is None else f", to {moment_text(page.scanned_to)}"
    return f" (looked at {plural(page.scanned, 'row')}{back})"


def _show(app: App, page: Page) -> None:
    now = app._core.now()
    rows = [job_view.line(row, now) for row in job_view.redacted(app, page.records)]
    table(job_view.COLUMNS, rows, "no jobs", right=("attempts",))
    if page.total is not None and page.total > len(page.records):
        note(f"{len(page.records):,} of {plural(page.total, 'job')}")


@jobs.command()
@targeted
@click.argument("id")
@click.option("--reveal", is_flag=True, help="Show the values whose names look like secrets, too.")
@as_json
def show(target: Target, id: str, reveal: bool, json_: bool) -> None:
    """Show all fields of a job, its last runs, and why it is in its state."""

    async def look(app: App) -> Any:
        [stored] = await stored_ids(app, [id])
        hide = None if reveal else app._core.redactor.row
        return await app.jobs.whole(stored), await app.jobs.history(stored, hide=hide), await app.jobs.explain(stored)

    row, history, why = target.run(lambda app: hinting(app, id, look(app)))
    if not reveal:
        why = target.app._core.redactor.text(why, row)
        [row] = job_view.redacted(target.app, [row])
    why = target.repeating(why)
    if json_:
        more = {"runs": job_view.plain_runs(history), "streams": history.streams, "why": why}
        document({**job_view.plain(target.app, row), **more})
    else:
        streams = job_view.streams(row.id, history)
        pairs = job_view.shown(target.app, row, why, target.app._core.now())
        facts([*pairs, ("runs", job_view.runs(history)), ("streams", target.repeating(streams))])


@jobs.command()
@targeted
@click.argument("id")
@click.option("--eta", is_flag=True, help="Also estimate when it starts, and what would let it start earlier.")
@as_json
def explain(target: Target, id: str, eta: bool, json_: bool) -> None:
    """Explain why a job is not running, or how it ended, and which command changes that."""

    async def look(app: App) -> Any:
        [stored] = await stored_ids(app, [id])
        answer: Any = await (app.jobs.eta(stored) if eta else app.jobs.explain(stored))
        text, [row] = answer.explanation if eta else answer, await app.storage.get([stored])
        text = target.repeating(text if row is None else app._core.redactor.text(text, row))
        return repeated(target, replace(answer, explanation=text)) if eta else text

    answer = target.run(lambda app: hinting(app, id, look(app)))
    if json_:
        document(answer if eta else {"id": id, "explanation": answer})
    elif eta:
        show_estimate(answer)
    else:
        data(answer)


@jobs.command()
@targeted
@click.option("--task", "-t", help="Name of the task.")
@click.option("--queue", "-q", help="Name of the queue.")
@click.option(
    "--scan",
    type=click.IntRange(1, 10_000),
    default=1_000,
    show_default=True,
    help="Number of failed jobs to look at, the newest first.",
)
@as_json
def failures(target: Target, task: str | None, queue: str | None, scan: int, json_: bool) -> None:
    """Group the newest failed jobs by task, queue and error, the largest group first."""

    async def look(app: App) -> FailureGroups:
        groups = await app.dead.groups(scan=scan, task=task, queue=queue)
        samples = await app._core.client.get([group.sample for group in groups.groups])
        pairs = zip(groups.groups, samples, strict=True)
        return replace(groups, groups=[job_view.redacted_group(app, group, row) for group, row in pairs])

    groups = target.run(look)
    now = target.app._core.now()
    rows = [job_view.group_line(group, now) for group in groups.groups]
    plain = [job_view.plain_group(group) for group in groups.groups]
    listed(json_, plain, job_view.GROUPS, rows, "no failed jobs", right=("jobs",))
    if groups.cursor is not None and not json_:
        more = "+" if groups.capped else ""
        note(f"the newest {groups.scanned:,} of {groups.total:,}{more} failed jobs; --scan looks at more")


# --- acting


def acting(verb: str, done: str, default: tuple[str, ...], act: Act) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that takes ids, or filters and a confirmation."""

    def decorate(described: Callable[..., Any]) -> click.Command:
        @targeted
        @filtered
        @click.argument("ids", nargs=-1, metavar="[ID]...")
        @click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
        @functools.wraps(described)
        def command(target: Target, filters: Filters, ids: tuple[str, ...], yes: bool, **options: Any) -> int:
            if bool(ids) == bool(filters):
                raise click.UsageError("give ids, or else at least one filter such as --queue or --state")
            chosen = described(act, **options)
            return target.run(lambda app: _act(app, verb, done, default, chosen, ids, filters, yes))

        return jobs.command(verb)(command)

    return decorate


async def _act(
    app: App, verb: str, done: str, default: tuple[str, ...], act: Act, ids: Sequence[str], filters: Filters, yes: bool
) -> int:
    await check_stays(app.storage)
    if ids:
        stored = await stored_ids(app, ids)
        async with audited(app, f"jobs.{verb.replace('-', '_')}", "", ", ".join(stored)) as receipt:
            receipt.ids = list(stored)
            failed, receipt.done = await _each(app, verb, done, act, stored)
        return failed
    if "status" not in filters:
        filters = {"state": default, **filters}
    described = words_of(query_of(filters), text_of(filters))
    matching = await _count(app, filters)
    if not matching:
        note(f"no job matches ({described})")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise Stop(FAILED, f"{verb} would act on {plural(matching, 'job')}; confirm with --yes")
        click.confirm(f"{verb} {plural(matching, 'job')}?", abort=True, err=True)
    async with audited(app, f"jobs.{verb.replace('-', '_')}", "", described) as receipt:
        with Bar(verb, matching) as bar:
            receipt.done = await act(app, progress=bar.update, **filters)
        data(f"{done} {plural(receipt.done, 'job')}")
    return 0


async def _count(app: App, filters: Filters) -> int:
    """The number of jobs that match. A search has to read them."""
    if "search" not in filters:
        return (await app.jobs.list(limit=0, count=True, **filters)).total or 0
    return len([row.id async for row in app.jobs.iterate(**filters)])


async def _each(app: App, verb: str, done: str, act: Act, ids: list[str]) -> tuple[int, int]:
    """Act on jobs by id -> the exit code, and the number of jobs. Print an error for each that cannot be changed, and
    go on with the others."""
    from treadle.core.errors import KeyHeld, Stale, UnknownJob

    failed, acted = 0, 0
    for id in ids:
        try:
            acted += await act(app, id)
        except (UnknownJob, KeyHeld, Stale) as error:
            failed += 1
            complain(f"{verb}: {error}")
    data(f"{done} {plural(acted, 'job')}")
    return FAILED if failed else 0, acted


@acting("cancel", "cancelled", UNFINISHED, lambda app, *ids, **rest: app.jobs.cancel(*ids, **rest))
@click.option("--no-children", is_flag=True, help="Do not cancel the children.")
@click.option("--force", is_flag=True, help="Run no undos and no cleanup of durable jobs.")
def cancel(act: Act, no_children: bool, force: bool) -> Act:
    """Cancel unfinished jobs and their children, including those that are running."""
    tree = not no_children
    return lambda app, *ids, **rest: act(app, *ids, tree=tree, force=force, **rest)


@acting("retry", "reopened", ("failed",), lambda app, *ids, **rest: app.jobs.retry(*ids, **rest))
def retry(act: Act) -> Act:
    """Reopen failed jobs, or cancelled ones with --state cancelled, and the jobs that ended because of them."""
    return act


@acting("run-now", "queued", ("ready",), lambda app, *ids, **rest: app.jobs.run_now(*ids, **rest))
def run_now(act: Act) -> Act:
    """Queue scheduled jobs now, including retries that are not due yet."""
    return act


@acting("pause", "paused", UNFINISHED, lambda app, *ids, **rest: app.jobs.pause(*ids, **rest))
def pause(act: Act) -> Act:
    """Pause unfinished jobs until they are resumed, including those that sleep, wait or run."""
    return act


@acting("resume", "resumed", ("ready",), lambda app, *ids, **rest: app.jobs.resume(*ids, **rest))
def resume(act: Act) -> Act:
    """Resume paused jobs; one that slept or was scheduled waits for the rest of its time."""
    return act


@acting("delete", "deleted", FINAL, lambda app, *ids, **rest: app.jobs.delete(*ids, **rest))
def delete(act: Act) -> Act:
    """Delete ended jobs. Their rows are removed within about a minute."""
    return act


@jobs.command()
@targeted
@click.argument("id")
@click.argument("name")
@click.argument("value", default="null")
def signal(target: Target, id: str, name: str, value: str) -> None:
    """Send the signal NAME to a job that waits for it now or later.

    VALUE is JSON; text that is not JSON is sent as a string. Put `--` before a value that begins with a dash.
    """
    from treadle.cli.enqueue import value_of

    async def give(app: App) -> None:
        [stored] = await stored_ids(app, [id])
        async with audited(app, "job.signal", stored, f"name={name}"):
            await app.jobs.signal(stored, name, value_of(value))

    target.run(give)
    note(f"{id} received the signal {name!r}")


@jobs.command()
@targeted
@click.argument("id")
@click.argument("name")
@click.argument("value", default="null")
@click.option("--key", help="A message that is sent again with this key is received once.")
@click.option("--answer", type=click.FloatRange(0), help="Seconds to wait for an answer, which is printed.")
def send(target: Target, id: str, name: str, value: str, key: str | None, answer: float | None) -> None:
    """Put a message in the mailbox NAME of a job, which receives all of them in order.

    VALUE is JSON; text that is not JSON is sent as a string. Put `--` before a value that begins with a dash.
    """
    from treadle.cli.enqueue import value_of

    async def give(app: App) -> Any:
        [stored] = await stored_ids(app, [id])
        async with audited(app, "job.send", stored, f"name={name}"):
            if answer is None:
                return await app.jobs.send(stored, name, value_of(value), key=key)
            try:
                return await app.jobs.ask(stored, name, value_of(value), timeout=answer, key=key)
            except TimeoutError as error:
                raise Stop(FAILED, str(error)) from None

    result = target.run(give)
    if answer is None:
        note(f"{id} has the message in its mailbox {name!r}")
    else:
        document(result)
