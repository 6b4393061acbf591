"""`treadle storage check`: compares an app's code with the jobs in a storage, before that code is deployed."""

from __future__ import annotations

import asyncio
import dataclasses

import click

from treadle.admin.code_check import Finding, Options, Patch, Report, check_code
from treadle.app import App
from treadle.cli.app_loader import find_app
from treadle.cli.options import number, required_app
from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, data, document, note, paint, place, plural
from treadle.cli.progress import Bar
from treadle.cli.target import note_move
from treadle.core.redaction import in_line
from treadle.outbox import Outbox


@click.command()
@required_app
@click.option("--url", metavar="URL", help="Storage URL to check the code against. [default: that of the app]")
@click.option(
    "--queues",
    "-q",
    multiple=True,
    metavar="NAMES",
    help="Queues that the workers are started with, such as mail=3,bulk. [default: the queues of all tasks]",
)
@click.option("--only", multiple=True, metavar="NAMES", help="Check only the jobs of these queues. [default: of all]")
@number("--sample", metavar="N", help="Look only at the N oldest and the N newest unfinished jobs. [default: all]")
@click.option(
    "--outbox", metavar="URL", help="Database with the app's outbox, to check its jobs, too. [default: that of the app]"
)
@click.option("--no-outbox", is_flag=True, help="Do not check the jobs of the app's outbox.")
@click.option("--strict", is_flag=True, help="Exit with 1 also if there are only notes.")
@as_json
def check(
    app: str,
    url: str | None,
    queues: tuple[str, ...],
    only: tuple[str, ...],
    sample: int | None,
    outbox: str | None,
    no_outbox: bool,
    strict: bool,
    json_: bool,
) -> int:
    """Compare the code of MODULE:APP with what is queued, scheduled and half run, and name every misfit.

    The exit code is 1 if jobs would break: arguments that no longer fit, removed tasks, queues that no worker serves,
    steps and reducers that are gone, results that cannot be read. Notes (schedules and limits) do not change it.

    The command only reads: it stores nothing, migrates nothing and runs no job. Rights to read are enough.
    """
    loaded = find_app(app)
    if url is not None:
        core = loaded._core
        core.use(dataclasses.replace(core.choice, url=url, storage=None, ports=None, by_default=False))
    if outbox is not None:
        _outbox_at(loaded, outbox)
    if (loaded._core.url or "").startswith("memory:"):
        raise Stop(USAGE, "a storage of memory:// has no jobs of other processes: give the one to check with --url")
    options = Options(serves=_names(queues), only=_names(only), sample=sample, outbox=not no_outbox)
    report = asyncio.run(_run(loaded, options))
    if json_:
        document(report)
    else:
        _show(report, place(loaded._core.url, "the storage of the app"))
    return FAILED if report.fails(strict) else OK


def _outbox_at(app: App, url: str) -> None:
    core = app._core
    if core.choice.outbox is None:
        raise Stop(USAGE, "--outbox: this app has no outbox")
    core.use(dataclasses.replace(core.choice, outbox=Outbox(url, schema=core.choice.outbox.schema)))


async def _run(app: App, options: Options) -> Report:
    with app._core.looking():
        async with app:
            await note_move(app)
            with Bar("checking", 0) as bar:

                def progress(looked: int, jobs: int) -> None:
                    bar.total = max(looked, jobs)
                    bar.update(looked)

                return await check_code(app._core, options, progress)


def _show(report: Report, where: str) -> None:
    for finding in report.findings:
        _finding(finding)
    for patch in report.patches:
        _patch(patch)
    breaks = sum(finding.level == "break" for finding in report.findings)
    notes = len(report.findings) - breaks
    share = f"{report.looked:,} of " if report.sampled else ""
    checked = share + plural(report.jobs if report.sampled else report.looked, "unfinished job")
    if report.outbox:
        checked += f" and {plural(report.outbox, 'job')} of the outbox"
    verdict = f"{plural(breaks, 'misfit')}, {plural(notes, 'note')}" if report.findings else "the code fits"
    note(f"{where}: {checked} checked: {verdict}")


def _patch(patch: Patch) -> None:
    name, task = in_line(patch.name), in_line(patch.task)
    if patch.old:
        data(f"note  patch {name} of {task}: {plural(patch.old, 'job')} may need its old code, e.g. {patch.example}")
    else:
        data(f"note  patch {name} of {task}: no unfinished job needs its old code; remove that, and `patched`")


def _finding(finding: Finding) -> None:
    word = "fail" if finding.level == "break" else "warn"
    many = plural(finding.jobs, "job") if finding.states else ""
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(finding.states.items()))
    counted = f"  {many} ({states})" if many else ""
    data(f"{paint(f'{word:<4}', word)}  {finding.kind} {in_line(finding.subject)}{counted}")
    data(f"      {in_line(finding.what)}")
    if finding.example is not None:
        data(f"      e.g. {in_line(finding.example)}")
    data(f"      -> {in_line(finding.advice)}")


def _names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The names in `mail=3,bulk`; weights are left out."""
    return tuple(part.strip().partition("=")[0] for text in texts for part in text.split(",") if part.strip())
