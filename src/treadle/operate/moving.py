"""Moving house: every job of one storage carried to another, while workers and producers may go on trying.

Without it a project that outgrows its storage would have to drain it first. Each step may be cut off anywhere and is
gone on with by calling `move` again: what has been done stands in a mark that both storages keep.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.clock import monotonic
from treadle.errors import MoveFailed, Unsupported
from treadle.model import State
from treadle.storage.carrying import Carried, Mark, digest, handed_over
from treadle.storage.contract import Movable, Storage

STEP: Final = 1_000  # jobs carried at once
WAIT: Final = 30.0  # s that what runs may take to end at its old place
LOOK: Final = 0.2  # s between two looks whether it has

Told = Callable[[str, int, int | None], None]
"""How far it is: "closing" (jobs that still run), "carrying" and "comparing" (jobs done, of how many)."""


class Place(Struct, frozen=True):
    """A storage, open, and what it is called where people read it."""

    storage: Storage
    name: str

    @property
    def movable(self) -> Movable:
        methods = ("read_mark", "set_mark", "unload", "load")
        # Not isinstance, which from Python 3.12 on does not see what a wrapped storage hands on.
        if any(getattr(self.storage, name, None) is None for name in methods):
            raise Unsupported(
                self.name, "moving", "give the storage that holds the jobs itself: SQLite, PostgreSQL, Redis or memory"
            )
        return cast("Movable", self.storage)


class Side(Struct, frozen=True):
    """What one storage holds: jobs by (queue, task, state), and a number that only the same jobs have."""

    counts: dict[tuple[str, str, str], int]
    digest: str
    rules: int

    @property
    def jobs(self) -> int:
        return sum(self.counts.values())


class Comparison(Struct, frozen=True):
    source: Side
    target: Side

    @property
    def same(self) -> bool:
        return self.source == self.target

    def differences(self) -> list[tuple[str, str, str, int, int]]:
        """(queue, task, state, jobs at the source, jobs at the target) where they are not alike."""
        one, other = self.source.counts, self.target.counts
        return [(*key, one.get(key, 0), other.get(key, 0)) for key in sorted({*one, *other})
                if one.get(key, 0) != other.get(key, 0)]  # fmt: skip


class Moved(Struct, frozen=True):
    """What a move has done. `running`: jobs that still ran when they were carried, and are ready again there."""

    jobs: int
    running: int
    rules: int
    digest: str
    resumed: bool


async def move(
    source: Place, target: Place, *, wait: float = WAIT, step: int = STEP, told: Told = lambda *_: None
) -> Moved:
    """Carry everything, compare, open the target. Called again after it was cut off, it goes on where it was.

    wait  s that jobs which run may take to end and be settled at the source; then they are carried as ready again
    Raises Unsupported, MoveFailed (the target holds other jobs, another move is under way, or the copy differs),
    StorageError. Whatever is raised, nothing is lost: the source keeps every job until somebody deletes it.
    """
    old, new = source.movable, target.movable
    leaving, arriving = await old.read_mark(), await new.read_mark()
    if leaving is not None and leaving.role == "gone" and arriving is not None and _is(arriving, leaving, "arrived"):
        raise MoveFailed(f"the jobs of {source.name} have arrived at {target.name} already; there is nothing to do")
    resumed = _resumes(source, leaving, arriving)
    if not resumed:
        await _check_free(source, target, leaving, arriving)
        going_on = leaving is not None and leaving.role in ("closing", "gone")
        arriving = Mark(role="filling", other=source.name, move=leaving.move if leaving and going_on else _new_id())
        await new.set_mark(arriving)
    assert arriving is not None
    if leaving is None or leaving.role != "gone":
        leaving = Mark(role="closing", other=target.name, move=arriving.move)
        await old.set_mark(leaving)
        await _settled(source.storage, wait, told)
        leaving = replace(leaving, role="gone")
        await old.set_mark(leaving)
    running = await _running(source.storage)
    await _carry(source, target, arriving, step, told)
    found = await compare(source, target, step=step, told=told)
    if not found.same:
        raise MoveFailed(_differing(source, target, found))
    await new.set_mark(replace(arriving, role="arrived", cursor=None, jobs=found.target.jobs))
    return Moved(found.source.jobs, running, found.source.rules, found.source.digest, resumed)


def _new_id() -> str:
    return str(uuid.uuid4())


def _is(mark: Mark, other: Mark, role: str) -> bool:
    return mark.move == other.move and mark.role == role


def _resumes(source: Place, leaving: Mark | None, arriving: Mark | None) -> bool:
    """Whether both belong to one move that was cut off; the target is marked first."""
    if arriving is None or arriving.role != "filling":
        return False
    if leaving is None or leaving.role == "arrived":
        return arriving.other == source.name
    return leaving.move == arriving.move


async def _check_free(source: Place, target: Place, leaving: Mark | None, arriving: Mark | None) -> None:
    if leaving is not None and leaving.role in ("closing", "gone") and leaving.other != target.name:
        raise MoveFailed(
            f"{source.name} is moving, or has moved, to {leaving.other}: go on there, or give that up with --abort"
        )
    if leaving is not None and leaving.role == "filling":
        raise MoveFailed(f"{source.name} is being filled from {leaving.other}: let that move end first")
    if arriving is not None and arriving.role != "arrived":
        what = "being filled from" if arriving.role == "filling" else "moving to"
        raise MoveFailed(f"{target.name} is {what} {arriving.other} by another move; give another target")
    counts = (await target.storage.stats()).counts
    if counts:
        jobs = sum(count.jobs for count in counts)
        raise MoveFailed(f"{target.name} holds {jobs:,} jobs already; a move needs an empty storage: give another one")


async def _settled(storage: Storage, wait: float, told: Told) -> None:
    """Until nothing runs any more, or the time is over."""
    until = monotonic() + wait
    while (running := await _running(storage)) and monotonic() < until:
        told("closing", running, None)
        await asyncio.sleep(LOOK)


async def _running(storage: Storage) -> int:
    return sum(count.jobs for count in (await storage.stats()).counts if count.state is State.RUNNING)


async def _carry(source: Place, target: Place, mark: Mark, step: int, told: Told) -> None:
    total = sum(count.jobs for count in (await source.storage.stats()).counts)
    cursor, done, first = mark.cursor, mark.jobs, mark.cursor is None
    while cursor is not None or first:
        load = await source.movable.unload(cursor, step)
        moved = tuple(replace(each, record=handed_over(each.record)) for each in load.jobs)
        cursor, done, first = load.cursor, done + len(moved), False
        # The last load leaves the cursor where it was: going on from there finds all of it known.
        mark = replace(mark, cursor=cursor or mark.cursor, jobs=done)
        await target.movable.load(replace(load, jobs=moved), mark)
        told("carrying", done, total)


async def compare(source: Place, target: Place, *, step: int = STEP, told: Told = lambda *_: None) -> Comparison:
    """Read both through and say what they hold; a job that runs counts as what it would be carried as. Sensible while
    nothing is written on either side."""
    return Comparison(await _side(source, step, told), await _side(target, step, told))


async def _side(place: Place, step: int, told: Told) -> Side:
    total = sum(count.jobs for count in (await place.storage.stats()).counts)
    counts, sum_, rules, done = Counter[tuple[str, str, str]](), 0, 0, 0
    cursor, first = None, True
    while cursor is not None or first:
        load = await place.movable.unload(cursor, step)
        rules += len(load.rules)
        counts.update(_kind(each) for each in load.jobs)
        sum_ = (sum_ + digest(load.jobs)) % 2**128
        cursor, first, done = load.cursor, False, done + len(load.jobs)
        told("comparing", done, total)
        await asyncio.sleep(0)
    return Side(dict(counts), f"{sum_:032x}", rules)


def _kind(each: Carried) -> tuple[str, str, str]:
    row = handed_over(each.record)
    return row.job.queue, row.job.task, str(row.state)


def _differing(source: Place, target: Place, found: Comparison) -> str:
    listed = "; ".join(
        f"{queue}/{task or 'promise'} {state}: {one:,} and {other:,}"
        for queue, task, state, one, other in found.differences()[:5]
    )
    return (
        f"{source.name} and {target.name} do not hold the same jobs ({listed or 'as many of each, but not alike'}). "
        "The target stays shut, the source keeps all jobs: empty the target and try again, or open the source again "
        "with --abort"
    )


async def abort(source: Place, target: Place | None = None) -> bool:
    """Give a move up that has not ended: open the source again. Whether there was one. The target stays shut, as it
    holds a part of the jobs; delete it. Raises MoveFailed if the move has ended: then the jobs live at the target."""
    mark = await source.movable.read_mark()
    if mark is None or mark.role not in ("closing", "gone"):
        return False
    arrived = await target.movable.read_mark() if target is not None else None
    if arrived is not None and _is(arrived, mark, "arrived"):
        raise MoveFailed(
            f"the move to {mark.other} has ended, and jobs may have run there since: opening {source.name} again would "
            "run them twice; move them back to an empty storage instead"
        )
    await source.movable.set_mark(None)
    return True
