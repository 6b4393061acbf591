"""`treadle storage move`: moves every job from one storage to another."""

from __future__ import annotations

import asyncio
import contextlib

import click

from treadle.admin import storage_move
from treadle.admin.storage_move import Comparison, OpenStorage
from treadle.cli.listing import listed
from treadle.cli.options import duration
from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, document, facts, note, plural
from treadle.cli.progress import Phases
from treadle.cli.target import file_of
from treadle.core.redaction import shown
from treadle.storage import connect


@click.command()
@click.argument("source")
@click.argument("target")
@duration("--wait", default="30", show_default=True, help="Seconds that running jobs in the source get to finish.")
@click.option("--check", is_flag=True, help="Move nothing; compare the contents of both storages.")
@click.option("--dry-run", is_flag=True, help="Move nothing; print what would be moved.")
@click.option("--prepare", is_flag=True, help="Move nothing yet: processes started with TARGET wait for the move.")
@click.option("--abort", is_flag=True, help="Abort an unfinished move and reopen the source.")
@click.option(
    "--step", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Number of jobs copied at a time."
)
@as_json
def move(source: str, target: str, wait: float, step: int, json_: bool, **modes: bool) -> int:
    """Move all jobs, limits and schedules from SOURCE to TARGET, both storage URLs. TARGET must be empty.

    Workers and producers may keep running. An interrupted move resumes when the command is run again. SOURCE keeps its
    rows, accepts no new jobs, and names TARGET in its errors.
    """
    [mode, *others] = [name for name, is_chosen in modes.items() if is_chosen] or ["move"]
    if others:
        raise Stop(USAGE, "give one of --check, --dry-run, --prepare and --abort")
    if source == target:
        raise Stop(USAGE, "SOURCE and TARGET are the same")
    for url, must_exist in ((source, True), (target, mode in ("check", "abort"))):
        if url.startswith("memory:"):
            raise Stop(USAGE, "a memory:// storage exists only in the process that made it; give another URL")
        file = file_of(url)
        if must_exist and file is not None and not file.is_file():
            raise Stop(USAGE, f"there is no database {file.absolute()}")
    return asyncio.run(_run(source, target, mode, wait, step, json_))


async def _run(source: str, target: str, mode: str, wait: float, step: int, json_: bool) -> int:
    """Open the storages, act, and close them. A dry run does not open the target."""
    old, new = (OpenStorage(connect(url), shown(url)) for url in (source, target))
    async with contextlib.AsyncExitStack() as opened:
        for place in (old,) if mode == "dry_run" else (old, new):
            await place.storage.open()
            opened.push_async_callback(place.storage.close)
        if mode == "dry_run":
            return await _plan(old, json_)
        if mode == "prepare":
            return await _prepare(old, new)
        if mode == "abort":
            return await _abort(old, new)
        with contextlib.closing(Phases()) as progress:
            if mode == "check":
                return _compared(await storage_move.compare(old, new, step=step, progress=progress), json_)
            return await _move(old, new, wait, step, progress, json_)


async def _plan(old: OpenStorage, json_: bool) -> int:
    counts = (await old.storage.stats()).counts
    old.movable  # noqa: B018 - raises if the storage does not support a move
    rows = [(count.queue, count.task, str(count.state), count.jobs) for count in counts]
    plain = {"source": old.name, "counts": counts}
    listed(json_, plain, ("queue", "task", "state", "jobs"), rows, f"{old.name} holds no jobs", right=("jobs",))
    if not json_:
        note(f"{plural(sum(count.jobs for count in counts), 'job')} would be moved; nothing was changed")
    return OK


async def _move(old: OpenStorage, new: OpenStorage, wait: float, step: int, progress: Phases, json_: bool) -> int:
    try:
        done = await storage_move.move(old, new, wait=wait, step=step, progress=progress)
    except storage_move.AlreadyMoved as error:
        note(str(error))
        done = None
    if json_:
        document({"source": old.name, "target": new.name, "moved": done})
    elif done is not None:
        ran = f"{plural(done.running, 'job')}: ready again when their leases expire" if done.running else ""
        facts(
            [
                ("moved", plural(done.jobs, "job")),
                ("to", new.name),
                ("rules", done.rules),
                ("ran meanwhile", ran),
                ("digest", f"{done.digest} on both sides"),
            ]
        )
        note(
            f"start workers and producers with {new.name}; {old.name} keeps its jobs and accepts no new ones: delete "
            "it when it is not needed any more"
        )
    return OK


def _compared(comparison: Comparison, json_: bool) -> int:
    sides, differences = (comparison.source, comparison.target), comparison.differences()
    plain = {
        "same": comparison.same,
        "source": comparison.source.digest,
        "target": comparison.target.digest,
        "jobs": [side.jobs for side in sides],
        "differences": differences,
    }
    columns = ("queue", "task", "state", "source", "target")
    listed(json_, plain, columns, differences, "the counts are equal on both sides", right=columns[3:])
    if not json_:
        source, target = (f"{plural(side.jobs, 'job')}, {side.digest}" for side in sides)
        verdict = "ok: both hold the same" if comparison.same else "fail: they differ"
        facts([("source", source), ("target", target), ("verdict", verdict)])
    return OK if comparison.same else FAILED


async def _prepare(old: OpenStorage, new: OpenStorage) -> int:
    await storage_move.prepare(old, new)
    note(
        f"{new.name} waits for the jobs of {old.name}: workers and producers may be started with it now; they "
        "begin when the move has ended; --abort undoes this"
    )
    return OK


async def _abort(old: OpenStorage, new: OpenStorage) -> int:
    if not await storage_move.abort(old, new):
        note(f"{old.name} is not being moved; nothing was changed")
        return OK
    mark = await new.movable.read_mark()
    is_shut = mark is not None and mark.role == "partial"
    rest = "stays closed and holds some of the jobs: delete it" if is_shut else "holds no jobs"
    note(f"{old.name} is open again; {new.name} {rest}")
    return OK
