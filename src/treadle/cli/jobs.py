"""`treadle jobs`: look at jobs, and act on them one by one or by filter.

Without it a person at three in the morning would write a script first.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.ids import stored_ids
from treadle.cli.output import FAILED, Stop, as_json, complain, data, document, facts, long_ago, note, plural, table
from treadle.cli.target import Target, targeted
from treadle.cli.watch import again, clear, every
from treadle.storage.transfer import check_stays

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.model import Page

Filters = dict[str, Any]
Act = Callable[..., Awaitable[int]]  # of the app, and an id or filters

UNFINISHED = ("waiting", "ready", "running")
FINAL = ("succeeded", "failed", "cancelled")


def _states(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    found = [part for text in texts for part in text.split(",") if part]
    for each in found:
        if each not in (*UNFINISHED, *FINAL):
            raise click.BadParameter(f"expected of {', '.join((*UNFINISHED, *FINAL))}; found {each!r}")
    return tuple(found)


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filters to a command, which gets those that were typed as `filters`."""

    @click.option("--state", "-s", multiple=True, callback=_states, help="One or several: ready,running.")
    @click.option("--task", "-t", help="Of this task.")
    @click.option("--queue", "-q", help="In this queue.")
    @click.option("--workflow", metavar="ID", help="Of the workflow that began with this job.")
    @click.option("--parent", metavar="ID", help="Children of this job.")
    @click.option("--label", "-l", help="With this label.")
    @click.option(
        "--before",
        type=long_ago,
        metavar="MOMENT",
        help="Created before: a moment (ISO 8601), or so long ago (2h, 1d).",
    )
    @functools.wraps(command)
    def with_filters(
        state: tuple[str, ...],
        task: str | None,
        queue: str | None,
        workflow: str | None,
        parent: str | None,
        label: str | None,
        before: datetime | None,
        **rest: Any,
    ) -> Any:
        typed = {
            "state": state or None,
            "task": task,
            "queue": queue,
            "workflow": workflow,
            "parent": parent,
            "label": label,
            "before": before,
        }
        return command(filters={name: value for name, value in typed.items() if value is not None}, **rest)

    return with_filters


@click.group()
def jobs() -> None:
    """Look at jobs and act on them."""


# --- looking


@jobs.command("list")
@targeted
@filtered
@click.option("--limit", "-n", type=click.IntRange(0, 10_000), default=50, show_default=True, help="Rows on a page.")
@click.option("--cursor", help="Go on where a page ended.")
@click.option("--order", type=click.Choice(["newest", "oldest", "ended", "line"]), default="newest", show_default=True)
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@every
@as_json
def list_(
    target: Target,
    filters: Filters,
    limit: int,
    cursor: str | None,
    order: Any,
    watch: bool,
    every_: float,
    times: int | None,
    json_: bool,
) -> None:
    """One page of jobs, newest first. --every and --times are for --watch."""
    from treadle.cli import job_view

    async def look(app: App) -> Page:
        return await app.jobs.list(cursor=cursor, limit=limit, order=order, count=not json_, **filters)

    async def show(app: App) -> None:
        page = await look(app)
        clear()
        _show(app, page)

    if watch and json_:
        raise click.UsageError("--watch is for people; with --json, ask as often as you like")
    if watch:
        again(target, show, every_, times)
        return
    page = target.run(look)
    if json_:
        document([job_view.plain(target.app, row) for row in page.records])
    else:
        _show(target.app, page)
    if page.cursor:
        note(f"next page: --cursor {page.cursor}")


def _show(app: App, page: Page) -> None:
    from treadle.cli import job_view

    now = app.now()
    table(job_view.COLUMNS, [job_view.line(row, now) for row in page.records], "no jobs", right=("try",))
    if page.total is not None and page.total > len(page.records):
        note(f"{len(page.records):,} of {plural(page.total, 'job')}")


@jobs.command()
@targeted
@click.argument("id")
@as_json
def show(target: Target, id: str, json_: bool) -> None:
    """All there is to know about one job."""
    from treadle.cli import job_view

    async def look(app: App) -> Any:
        [stored] = await stored_ids(app, [id])
        return await app.jobs.get(stored), await app.jobs.explain(stored)

    row, why = target.run(look)
    if json_:
        document({**job_view.plain(target.app, row), "why": why})
    else:
        facts(job_view.shown(target.app, row, why, target.app.now()))


@jobs.command()
@targeted
@click.argument("id")
def explain(target: Target, id: str) -> None:
    """In one sentence: why it is not running, or what became of it."""

    async def look(app: App) -> str:
        [stored] = await stored_ids(app, [id])
        return await app.jobs.explain(stored)

    data(target.run(look))


# --- acting


def acting(verb: str, done: str, default: tuple[str, ...], act: Act) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a verb that takes ids, or filters and a confirmation."""

    def decorate(described: Callable[..., Any]) -> click.Command:
        @targeted
        @filtered
        @click.argument("ids", nargs=-1, metavar="[ID]...")
        @click.option("--yes", "-y", is_flag=True, help="Do not ask.")
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
        return await _each(app, verb, done, act, await stored_ids(app, ids))
    filters = {"state": default, **filters}
    found = (await app.jobs.list(limit=0, count=True, **filters)).total or 0
    if not found:
        note(f"no job fits (looked for {', '.join(filters['state'])})")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise Stop(FAILED, f"{verb} would act on {plural(found, 'job')}; say --yes")
        click.confirm(f"{verb} {plural(found, 'job')}?", abort=True, err=True)
    return await _many(app, verb, done, act, filters, found)


async def _each(app: App, verb: str, done: str, act: Act, ids: list[str]) -> int:
    """Those named: each that cannot be is said, and the others are done all the same."""
    from treadle.errors import KeyHeld, Stale, UnknownJob

    failed, acted = 0, 0
    for id in ids:
        try:
            acted += await act(app, id)
        except (UnknownJob, KeyHeld, Stale) as error:
            failed += 1
            complain(f"{verb}: {error}")
    data(f"{done} {plural(acted, 'job')}")
    return FAILED if failed else 0


async def _many(app: App, verb: str, done: str, act: Act, filters: Filters, found: int) -> int:
    """Those a filter finds: one that meanwhile moved on is passed over."""
    from treadle.cli.progress import Bar

    with Bar(verb, found) as bar:
        acted = await act(app, progress=bar.update, **filters)
    data(f"{done} {plural(acted, 'job')}")
    return 0


@acting("cancel", "cancelled", UNFINISHED, lambda app, *ids, **rest: app.jobs.cancel(*ids, **rest))
@click.option("--no-children", is_flag=True, help="Leave the children alone.")
def cancel(act: Act, no_children: bool) -> Act:
    """End unfinished jobs and their children; functions that run are told to stop."""
    return (lambda app, *ids, **rest: app.jobs.cancel(*ids, tree=False, **rest)) if no_children else act


@acting("retry", "reopened", ("failed",), lambda app, *ids, **rest: app.jobs.retry(*ids, **rest))
def retry(act: Act) -> Act:
    """Reopen failed jobs (with --state cancelled those), and what ended because of them."""
    return act


@acting("run-now", "brought into line", ("ready",), lambda app, *ids, **rest: app.jobs.run_now(*ids, **rest))
def run_now(act: Act) -> Act:
    """Bring scheduled jobs, and those that wait for their next try, into line at once."""
    return act


@acting("delete", "deleted", FINAL, lambda app, *ids, **rest: app.jobs.delete(*ids, **rest))
def delete(act: Act) -> Act:
    """Let ended jobs go: their rows are gone within a minute or so."""
    return act


@jobs.command()
@targeted
@click.argument("id")
@click.argument("name")
@click.argument("value", default="null")
def signal(target: Target, id: str, name: str, value: str) -> None:
    """Give a job the signal NAME it waits for, or will.

    VALUE is JSON; what is no JSON is plain text. Put `--` before one that begins with a dash.
    """
    from treadle.cli.enqueue import value_of

    async def give(app: App) -> None:
        [stored] = await stored_ids(app, [id])
        await app.jobs.signal(stored, name, value_of(value))

    target.run(give)
    note(f"{id} has {name!r}")
