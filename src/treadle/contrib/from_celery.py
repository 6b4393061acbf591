"""`treadle from celery`: moves a program from another job queue to Treadle."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import click

from treadle.cli.group import Group
from treadle.cli.output import FAILED, OK, USAGE, Stop, data, document, note, plural


@click.group("from", cls=Group)
def from_() -> None:
    """Move a program from another job queue to Treadle."""


@from_.command()
@click.argument("package", type=click.Path(path_type=Path))
@click.option("--write", "write_", is_flag=True, help="Change the files. [default: print the changes as a diff]")
@click.option("--report", metavar="FILE", type=click.Path(path_type=Path), help="Write the report to FILE as well.")
@click.option("--json", "json_", is_flag=True, help="Print the report as JSON, and no diff.")
@click.option("--force", is_flag=True, help="With --write: also if git could not bring the old files back.")
def celery(package: Path, write_: bool, report: Path | None, json_: bool, force: bool) -> int:
    """Rewrite the Celery tasks of PACKAGE, a folder or a file, and everything that uses them.

    A task moves with all of its uses or stays with all of them; the report names every line that stays, with the
    reason and the section of the guide. The rewritten program runs: what stays, runs on Celery.

    Exit codes: 0 done, even if lines are left; 1 no task could be moved, or a file could not be read; 2 usage error.
    """
    if importlib.util.find_spec("libcst") is None:
        raise Stop(USAGE, "this needs the package libcst: pip install 'libcst>=1.5', or the extra treadle[migrate]")
    from treadle.contrib import celery as migration

    if not package.exists():
        raise Stop(USAGE, f"there is no folder or file {package}; expected the package of the program")
    plan = migration.plan(package)
    if write_ and plan.files:
        try:
            if not force:
                migration.check_tree(package)
            migration.write(plan.files, plan.before)
        except migration.NotWritten as error:
            raise Stop(USAGE, str(error)) from None
    text = migration.as_text(plan)
    if report is not None:
        report.write_text(text, encoding="utf-8")
    if json_:
        document(migration.as_json(plan, write_ and bool(plan.files)))
    else:
        if not write_ and (changes := migration.diff(plan)):
            data(changes)
        if report is None:
            note(text.rstrip("\n"))
    remaining = sum(finding.kind == "left" for finding in plan.findings)
    did = "changed" if write_ else "would be changed"
    note(f"{plural(len(plan.files), 'file')} {did}; {plural(remaining, 'line')} left{_where(report)}")
    unread = any(finding.section == migration.UNREAD for finding in plan.findings)
    return FAILED if unread or (plan.stayed and not plan.moved) else OK


def _where(report: Path | None) -> str:
    return f"; see {os.fspath(report)}" if report is not None else ""
