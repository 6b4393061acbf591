"""`treadle move`: moves every job from one storage to another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, document, facts, note, plural, seconds, table
from treadle.cli.progress import Bar
from treadle.cli.target import file_of
from treadle.core.redaction import shown

if TYPE_CHECKING:
    from treadle.admin.storage_move import Comparison, Moved, OpenStorage

T = TypeVar("T")


@click.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=seconds,
    default="30",
    show_default=True,
    help="Seconds that running jobs in the source get to finish.",
)
@click.option("--check", is_flag=True, help="Move nothing; compare the contents of both storages.")
@click.option("--dry-run", is_flag=True, help="Move nothing; print what would be moved.")
@click.option("--prepare", is_flag=True, help="Move nothing yet: processes started with TARGET wait for the move.")
@click.option("--abort", is_flag=True, help="Abort an unfinished move and reopen the source.")
@click.option(
    "--step", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Number of jobs copied at a time."
)
@as_json
def move(
    source: str,
    target: str,
    wait: float,
    check: bool,
    dry_run: bool,
    prepare: bool,
    abort: bool,
    step: int,
    json_: bool,
) -> int:
    """Move all jobs, limits and schedules from SOURCE to TARGET, both storage URLs. TARGET must be empty.

    Workers and producers may keep running. An interrupted move resumes when the command is run again. SOURCE keeps its
    rows, accepts no new jobs, and names TARGET in its errors.
    """
    from treadle.admin import storage_move

    if check + dry_run + prepare + abort > 1:
        raise Stop(USAGE, "give one of --check, --dry-run, --prepare and --abort")
    if source == target:
        raise Stop(USAGE, "SOURCE and TARGET are the same")
    for url in (source, target):
        if url.startswith("memory:"):
            raise Stop(USAGE, "a memory:// storage exists only in the process that made it; give another URL")
    file = file_of(source)
    if file is not None and not file.is_file():
        raise Stop(USAGE, f"there is no database {file.absolute()}")
    target_file = file_of(target)
    if (check or abort or dry_run) and target_file is not None and not target_file.is_file():
        if not dry_run:
            raise Stop(USAGE, f"there is no database {target_file.absolute()}")
        return _run(source, None, lambda old, _: _plan(old, json_))
    if dry_run:
        return _run(source, None, lambda old, _: _plan(old, json_))
    if prepare:
        return _run(source, target, lambda old, new: _prepared(storage_move.prepare(old, new), old, new))
    if abort:
        return _run(source, target, lambda old, new: _abort(storage_move.abort(old, new), old, new))
    with _Progress() as progress:
        if check:
            return _run(
                source,
                target,
                lambda old, new: _compared(storage_move.compare(old, new, step=step, told=progress), json_),
            )
        return _run(
            source,
            target,
            lambda old, new: _moved(storage_move.move(old, new, wait=wait, step=step, told=progress), old, new, json_),
        )


def _run(source: str, target: str | None, act: Callable[[OpenStorage, OpenStorage], Awaitable[int]]) -> int:
    """Open the storages, call `act`, close them."""
    from treadle.admin.storage_move import OpenStorage
    from treadle.storage import connect

    async def work() -> int:
        places = [OpenStorage(connect(url), shown(url)) for url in (source, target or source)]
        opened: list[OpenStorage] = []
        try:
            for place in places[: 2 if target is not None else 1]:
                await place.storage.open()
                opened.append(place)
            return await act(places[0], places[1])
        finally:
            for place in opened:
                await place.storage.close()

    return asyncio.run(work())


async def _plan(old: OpenStorage, json_: bool) -> int:
    counts = (await old.storage.stats()).counts
    old.movable  # noqa: B018 - raises if the storage does not support a move
    if json_:
        document({"source": old.name, "counts": counts})
        return OK
    rows = [(count.queue, count.task, str(count.state), count.jobs) for count in counts]
    table(("queue", "task", "state", "jobs"), rows, f"{old.name} holds no jobs", right=("jobs",))
    note(f"{plural(sum(count.jobs for count in counts), 'job')} would be moved; nothing was changed")
    return OK


async def _moved(move: Awaitable[Moved], old: OpenStorage, new: OpenStorage, json_: bool) -> int:
    from treadle.admin.storage_move import AlreadyMoved

    try:
        done = await move
    except AlreadyMoved as error:
        note(str(error))
        if json_:
            document({"source": old.name, "target": new.name, "moved": None})
        return OK
    if json_:
        document({"source": old.name, "target": new.name, "moved": done})
        return OK
    facts(
        [
            ("moved", plural(done.jobs, "job")),
            ("to", new.name),
            ("rules", done.rules),
            (
                "ran meanwhile",
                f"{plural(done.running, 'job')}: ready again when their leases expire" if done.running else "",
            ),
            ("digest", f"{done.digest} on both sides"),
        ]
    )
    note(
        f"start workers and producers with {new.name}; {old.name} keeps its jobs and accepts no new ones: delete it "
        "when it is not needed any more"
    )
    return OK


async def _compared(compare: Awaitable[Comparison], json_: bool) -> int:
    found = await compare
    if json_:
        document(
            {
                "same": found.same,
                "source": found.source.digest,
                "target": found.target.digest,
                "jobs": [found.source.jobs, found.target.jobs],
                "differences": found.differences(),
            }
        )
    else:
        table(
            ("queue", "task", "state", "source", "target"),
            found.differences(),
            "the counts are equal on both sides",
            right=("source", "target"),
        )
        facts(
            [
                ("source", f"{plural(found.source.jobs, 'job')}, {found.source.digest}"),
                ("target", f"{plural(found.target.jobs, 'job')}, {found.target.digest}"),
                ("verdict", "ok: both hold the same" if found.same else "fail: they differ"),
            ]
        )
    return OK if found.same else FAILED


async def _prepared(prepare: Awaitable[None], old: OpenStorage, new: OpenStorage) -> int:
    await prepare
    note(
        f"{new.name} waits for the jobs of {old.name}: workers and producers may be started with it now; they "
        "begin when the move has ended; --abort undoes this"
    )
    return OK


async def _abort(abort: Awaitable[bool], old: OpenStorage, new: OpenStorage) -> int:
    if await abort:
        mark = await new.movable.read_mark()
        shut = mark is not None and mark.role == "partial"
        rest = "stays closed and holds some of the jobs: delete it" if shut else "holds no jobs"
        note(f"{old.name} is open again; {new.name} {rest}")
        return OK
    note(f"{old.name} is not being moved; nothing was changed")
    return OK


class _Progress:
    """Shows a progress bar for each phase."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._phase = ""

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if total is None:
            if phase != self._phase:
                self._close(phase)
                still = (
                    f"waiting for {plural(done, 'job')} that {'is' if done == 1 else 'are'} still running at the source"
                )
                note(still if phase == "closing" else phase)
            return
        if self._bar is None or phase != self._phase or self._bar.total != total:
            self._close(phase)
            self._bar = Bar(phase, total)
        self._bar.update(done)

    def _close(self, phase: str = "") -> None:
        self._phase = phase
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
