"""`treadle demo`: where it runs, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator

import click

from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, document, note
from treadle.core.clock import monotonic

PATIENCE = 8.0  # s until we give up deleting a folder somebody writes to: longer than the workers' grace


@click.command()
@click.option("--processes", "-p", type=click.IntRange(1), default=2, show_default=True, help="Worker processes.")
@click.option("--url", metavar="URL", help="Where jobs shall live. Default: a SQLite file that is deleted at the end.")
@click.option("--kill", is_flag=True, help="Kill -9 a worker in the middle, and watch its jobs come back.")
@click.option("--keep", is_flag=True, help="Do not delete the SQLite file; look at it with `treadle jobs`.")
@as_json
def demo(processes: int, url: str | None, kill: bool, keep: bool, json_: bool) -> int:
    """Index the standard library of this Python: a job for each module, and a last one that joins their results."""
    if sys.platform == "win32":
        raise Stop(USAGE, "the demo needs signals that Windows does not have; `treadle worker` works there")
    if url is not None and url.startswith("memory:"):
        raise Stop(USAGE, "memory:// lives in one process, the demo's workers are others: give another --url")
    # From here on SIGTERM is a Ctrl-C: what was made is deleted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _place(url, keep) as where:
        os.environ["TREADLE_URL"] = where  # the demo's app and its workers read it as any app does
        from treadle.cli.demo.library import modules
        from treadle.cli.demo.run import run
        from treadle.cli.demo.show import show

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
    # What else is temporary, here and in the workers, shall go with it: a killed worker cleans up nothing.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield f"sqlite:///{folder}/demo.db"
    finally:
        if keep:
            note(f"kept: treadle jobs list --url sqlite:///{folder}/demo.db")
        else:
            _delete(folder)


def _delete(folder: str) -> None:
    """Whoever is impatient now waits: a worker that was interrupted twice may write for a moment yet."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    until = monotonic() + PATIENCE
    while os.path.isdir(folder) and monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.isdir(folder):
            time.sleep(0.05)
