"""The command `treadle demo`: makes a temporary storage, runs the demo, and deletes every file afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import click

from treadle.cli.options import number
from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, document, note
from treadle.core.clock import monotonic
from treadle.core.command_lines import command
from treadle.core.file_urls import url_of

PATIENCE = 8.0  # s to retry deleting a folder that a worker still writes to: longer than the workers' grace


@click.command()
@number("--processes", "-p", default=2, show_default=True, help="Number of worker processes.")
@click.option("--url", metavar="URL", help="Storage URL. [default: a SQLite file that is deleted at the end]")
@click.option("--kill", is_flag=True, help="Kill -9 a worker half-way, and watch its jobs run again.")
@click.option("--keep", is_flag=True, help="Keep the SQLite file, for `treadle jobs`.")
@click.option("--dashboard", is_flag=True, help="Run a busy shop instead, with its dashboard, until Ctrl-C.")
@click.option(
    "--open/--no-open", "open_browser", default=True, help="With --dashboard: open it in a browser. [default: open]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="With --dashboard: its port. [default: the first free one from 7373]"
)
@as_json
def demo(url: str | None, keep: bool, dashboard: bool, open_browser: bool, port: int | None, **options: Any) -> int:
    """Index the standard library of this Python: one job per module, and a last one that joins the results.

    With --dashboard, run a shop whose jobs fail, wait and depend on each other, and watch them in a browser.
    """
    if dashboard:
        if options["kill"] or options["json_"]:
            raise Stop(USAGE, "--dashboard runs until Ctrl-C and prints no report: leave out --kill and --json")
        return _live(url, keep, port, open_browser)
    return _index(url, keep, **options)


def _live(url: str | None, keep: bool, port: int | None, open_browser: bool) -> int:
    with _place(url, keep) as where:
        os.environ["TREADLE_URL"] = where  # read by the demo's app
        from treadle.contrib.demo.live import run

        return run(port, open_browser)


def _index(url: str | None, keep: bool, processes: int, kill: bool, json_: bool) -> int:
    """The demo without a dashboard."""
    if sys.platform == "win32":
        raise Stop(USAGE, "the demo needs signals that Windows does not have; `treadle worker` works there")
    if url is not None and url.startswith("memory:"):
        raise Stop(USAGE, "the demo's worker processes cannot share a memory:// storage: give another --url")
    # SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that the folder is deleted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _place(url, keep) as where:
        os.environ["TREADLE_URL"] = where  # read by the demo's app, here and in the workers
        from treadle.contrib.demo.run import modules, run, show

        report, numbers = run(modules(), processes, kill)
        if json_:
            document({"jobs": numbers, "report": report})
        else:
            show(report, numbers)
    return FAILED if numbers.missing or numbers.succeeded + numbers.failed != numbers.enqueued else OK


@contextlib.contextmanager
def _place(url: str | None, keep: bool) -> Iterator[str]:
    if url is not None:
        yield url
        return
    folder = tempfile.mkdtemp(prefix="treadle-demo-")
    # All temporary files go into this folder, because a killed worker does not delete its own.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield (database := url_of(f"{folder}/demo.db"))
    finally:
        if keep:
            note("kept the database: " + command("jobs", "list", options=["--url", database]))
        else:
            _delete(folder)


def _delete(folder: str) -> None:
    """Delete the folder. Tries again for a while, because a worker that was stopped twice may still write to it.
    Ignores signals meanwhile."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    until = monotonic() + PATIENCE
    while os.path.isdir(folder) and monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.isdir(folder):
            time.sleep(0.05)
