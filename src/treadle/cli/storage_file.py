"""`treadle storage export` and `import`: all jobs of a storage as JSON lines, and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import click

from treadle.admin import storage_file
from treadle.admin.storage_move import OpenStorage
from treadle.cli.output import OK, USAGE, Stop, discard, facts, note, plural
from treadle.cli.progress import Phases
from treadle.cli.target import Target, targeted
from treadle.core.redaction import shown
from treadle.storage import connect
from treadle.storage.job_lines import End

T = TypeVar("T")
STDIO = "-"


@click.command()
@targeted
@click.argument("file", default=STDIO)
def export(target: Target, file: str) -> None:
    """Write every job, limit and schedule to the new FILE, one JSON object a line. [default: stdout]

    It changes nothing. To import the file, stop all workers and producers first: the last line says whether jobs
    changed meanwhile. Encrypted and offloaded values are written as they are stored.
    """

    async def write(place: OpenStorage, progress: Phases) -> End:
        with _written(file) as out:
            return await storage_file.export(place, out.write, progress=progress)

    end = _run(target, write)
    note(f"exported {plural(end.jobs, 'job')}")
    if end.changed:
        note("warning: jobs changed meanwhile, so the lines are not of one moment and cannot be imported")


@click.command("import")
@targeted
@click.argument("file", required=False)
@click.option("--add", is_flag=True, help="Import into a storage that has jobs: only the jobs with an unknown id.")
@click.option("--abort", is_flag=True, help="Open a storage whose import was interrupted, with the jobs that it has.")
def import_(target: Target, file: str | None, add: bool, abort: bool) -> None:
    """Store the jobs, limits and schedules of FILE, which `export` wrote; - is stdin. The storage must have no jobs.

    A file with a bad line is refused as a whole. The storage is closed meanwhile. An interrupted import resumes when
    the command is run again.
    """
    if abort == (file is not None) or (abort and add):
        raise Stop(USAGE, "give FILE, or --abort alone")
    if file is None:
        is_open = _run(target, lambda place, _: storage_file.abort(place))
        note(f"{target.url} is open again" if is_open else f"no import into {target.url} was interrupted")
        return
    with _read(file) as lines:
        jobs = storage_file.JobFile(lines, "standard input" if file == STDIO else Path(file).name)
        done = _run(target, lambda place, progress: storage_file.load(jobs, place, add=add, progress=progress), True)
    known = f"{plural(done.known, 'job')}, left unchanged" if done.known else ""
    fewer = f"{plural(done.exported - done.jobs, 'job')} of the export" if done.exported > done.jobs else ""
    facts([("imported", plural(done.jobs - done.known, "job")), ("known", known), ("not in the file", fewer)])


def _run(target: Target, act: Callable[[OpenStorage, Phases], Awaitable[T]], make: bool = False) -> T:
    """Open the storage itself, without the app's keys and blob store, and call `act`."""
    url = target.app.url
    if url is None or url.startswith("memory:"):
        raise Stop(USAGE, "this storage exists only in the process that made it; give --url of another one")
    target.check_there(make)

    async def run() -> T:
        storage = connect(url)
        await storage.open()
        try:
            with contextlib.closing(Phases()) as progress:
                return await act(OpenStorage(storage, shown(url)), progress)
        finally:
            await storage.close()

    return asyncio.run(run())


@contextlib.contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """A new file that only its owner can read, removed if an error prevents the last line; or stdout."""
    if file == STDIO:
        if sys.stdout is None:
            raise Stop(USAGE, "stdout is closed: give the name of a new file")
        try:
            out = sys.stdout.buffer
            yield out
            out.flush()
        except BrokenPipeError:
            discard(1)
            raise Stop(OK) from None
        return
    try:
        out = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Stop(USAGE, f"cannot create {file} ({error.strerror}); give the name of a new file") from None
    try:
        with out:
            yield out
    except BaseException:
        Path(file).unlink()
        raise


@contextlib.contextmanager
def _read(file: str) -> Iterator[BinaryIO]:
    """The file, or a copy of stdin or of a pipe on the disk: an import reads every line before it stores one."""
    if file == STDIO and sys.stdin is None:
        raise Stop(USAGE, "stdin is closed: give the name of a file")
    try:
        lines = sys.stdin.buffer if file == STDIO else open(file, "rb")  # noqa: SIM115 - the `with` below closes it
    except OSError as error:
        raise Stop(USAGE, f"cannot read {file} ({error.strerror})") from None
    with lines:
        if file != STDIO and lines.seekable():
            yield lines
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(lines, copy)
            yield copy
