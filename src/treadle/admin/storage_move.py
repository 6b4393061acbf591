"""Moving house: every job of one storage carried to another, while workers and producers may go on trying.

Without it a project that outgrows its storage would have to drain it first. Each step may be cut off anywhere and is
gone on with by calling `move` again: what has been done stands in a mark that both storages keep.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.limits import MARK
from treadle.core.clock import monotonic
from treadle.core.model import State
from treadle.errors import MoveFailed, Unsupported
from treadle.storage.contract import Movable, Storage
from treadle.storage.transfer import Carried, InTheWay, MoveState, Role, digest, handed_over

STEP: Final = 1_000  # jobs carried at once
WAIT: Final = 30.0  # s that what runs may take to end at its old place
LOOK: Final = 0.2  # s between two looks whether it has
PATIENT: Final = 2.0  # s, at least, for which a mark is tried to be set while calls of others are under way
LEAVING: Final = frozenset({"closing", "gone"})
OPEN: Final = frozenset({"arrived", "aborted"})

Told = Callable[[str, int, int | None], None]
"""How far it is: "closing" (jobs that still run), "waiting for ..." (no number: an open transaction is in the way),
"carrying" and "comparing" (jobs done, of how many)."""


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
        return [
            (*key, one.get(key, 0), other.get(key, 0))
            for key in sorted({*one, *other})
            if one.get(key, 0) != other.get(key, 0)
        ]


class Moved(Struct, frozen=True):
    """What a move has done. `running`: jobs that still ran when they were carried, and are ready again there."""

    jobs: int
    running: int
    rules: int
    digest: str
    resumed: bool


class _Run:
    """One run of the command. Its marks replace those of earlier runs, which are refused from then on."""

    def __init__(
        self,
        source: Place,
        target: Place,
        found: Sequence[MoveState | None],
        move: str,
        wait: float = WAIT,
        told: Told = lambda *_: None,
    ) -> None:
        self.source, self.target, self.move = source, target, move
        self._wait, self._told = max(wait, PATIENT), told
        self._turn = 1 + max((mark.turn for mark in found if mark is not None), default=0)
        self._run = str(uuid.uuid4())
        self._steps = itertools.count(1)

    async def mark_source(self, role: Role) -> None:
        mark = self.next(role, self.target)
        await self.patiently(self.source, lambda: self.source.movable.set_mark(mark))

    async def mark_target(self, role: Role, cursor: str | None = None, jobs: int = 0) -> None:
        mark = self.next(role, self.source, cursor, jobs)
        await self.patiently(self.target, lambda: self.target.movable.set_mark(mark))

    async def patiently(self, place: Place, act: Callable[[], Awaitable[None]]) -> None:
        """Until no transaction is in the way; calls of others pass meanwhile. Raises MoveFailed when time is over."""
        until = monotonic() + self._wait
        while True:
            try:
                return await act()
            except InTheWay as error:
                if monotonic() > until:
                    raise MoveFailed(
                        f"{error.who} at {place.name} may have stored jobs, and did not end in {self._wait:g} s: end "
                        "it, or give a longer --wait; then call move again"
                    ) from error
                self._told(f"waiting for {error.who} at {place.name}", 0, None)
            await asyncio.sleep(LOOK)

    def next(self, role: Role, other: Place, cursor: str | None = None, jobs: int = 0) -> MoveState:
        return MoveState(
            role=role,
            other=other.name,
            move=self.move,
            cursor=cursor,
            jobs=jobs,
            turn=self._turn,
            run=self._run,
            step=next(self._steps),
        )


async def move(
    source: Place, target: Place, *, wait: float = WAIT, step: int = STEP, told: Told = lambda *_: None
) -> Moved:
    """Carry everything, compare, open the target. Called again after it was cut off, it goes on where it was.

    wait  s that jobs which run may take to end and be settled at the source; then they are carried as ready again
    Raises Unsupported, MoveFailed (the target holds other jobs or rules, another run has taken the move over or ended
    it, or the copy differs), StorageError. Whatever is raised, nothing is lost: the source keeps every job until
    somebody deletes it. Several runs may be started: the last one carries on, the others raise MoveFailed.
    """
    leaving, arriving = await source.movable.read_mark(), await target.movable.read_mark()
    if leaving is not None and leaving.role == "gone" and arriving is not None and _is(arriving, leaving, "arrived"):
        await target.movable.set_mark(arriving)  # a run may have died before every shard had it
        raise MoveFailed(f"the jobs of {source.name} have arrived at {target.name} already; there is nothing to do")
    resumed = arriving is not None and _resumes(source, leaving, arriving)
    if resumed:
        assert arriving is not None
        run = _Run(source, target, (leaving, arriving), arriving.move, wait, told)
        await run.mark_target("filling", arriving.cursor, arriving.jobs)
    else:
        run = await _begin(source, target, leaving, arriving, wait, told)
    if leaving is None or leaving.role != "gone":
        await _close(run, undo=not resumed and (leaving is None or leaving.role != "closing"))
        await _settled(source.storage, wait, told)
        await run.mark_source("gone")
    running = await _running(source.storage)
    await _carry(run, arriving if resumed else None, step, told)
    found = await compare(source, target, step=step, told=told)
    if not found.same:
        raise MoveFailed(_differing(source, target, found))
    await run.mark_target("arrived", jobs=found.target.jobs)
    return Moved(found.source.jobs, running, found.source.rules, found.source.digest, resumed)


async def _close(run: _Run, undo: bool) -> None:
    """Nothing new is stored at the source from now on. `undo`: if that cannot be, the target is free again."""
    try:
        await run.mark_source("closing")
    except MoveFailed as error:
        if undo and isinstance(error.__cause__, InTheWay):
            await run.mark_target("aborted")
        raise


async def prepare(source: Place, target: Place) -> None:
    """Mark the target, and nothing else: workers and producers that are started with its URL wait until a `move` from
    the source has ended, instead of filling a storage that must be empty. `abort` takes it back. Raises as `move`."""
    leaving, arriving = await source.movable.read_mark(), await target.movable.read_mark()
    if arriving is None or not _resumes(source, leaving, arriving):
        await _begin(source, target, leaving, arriving)


async def _begin(
    source: Place,
    target: Place,
    leaving: MoveState | None,
    arriving: MoveState | None,
    wait: float = WAIT,
    told: Told = lambda *_: None,
) -> _Run:
    """Mark the target of a move that begins, or of one whose target was emptied since."""
    await _check_free(source, target, leaving, arriving)
    going_on = leaving is not None and leaving.role in LEAVING
    name = leaving.move if leaving and going_on else str(uuid.uuid4())
    run = _Run(source, target, (leaving, arriving), name, wait, told)
    await run.mark_target("filling")
    return run


def _is(mark: MoveState, other: MoveState, role: str) -> bool:
    return mark.move == other.move and mark.role == role


def _resumes(source: Place, leaving: MoveState | None, arriving: MoveState) -> bool:
    """Whether both belong to one move that was cut off or prepared; the target is marked first."""
    if arriving.role != "filling":
        return False
    if leaving is None or leaving.role in OPEN:
        return arriving.other == source.name
    return leaving.move == arriving.move


async def _check_free(source: Place, target: Place, leaving: MoveState | None, arriving: MoveState | None) -> None:
    if leaving is not None and leaving.role in LEAVING and leaving.other != target.name:
        raise MoveFailed(
            f"{source.name} is moving, or has moved, to {leaving.other}: go on there, or give that up with --abort"
        )
    if leaving is not None and leaving.role in ("filling", "partial"):
        raise MoveFailed(f"{source.name} is being filled from {leaving.other}: let that move end first")
    if arriving is not None and arriving.role == "partial":
        raise MoveFailed(
            f"{target.name} holds a part of the jobs of {arriving.other}, whose move was given up: "
            "delete it, or give another target"
        )
    if arriving is not None and arriving.role not in OPEN:
        what = "being filled from" if arriving.role == "filling" else "moving to"
        raise MoveFailed(f"{target.name} is {what} {arriving.other} by another move; give another target")
    held = await target.storage.stats()
    if held.counts:
        jobs = sum(count.jobs for count in held.counts)
        raise MoveFailed(
            f"{target.name} holds {jobs:,} jobs already; a move needs an empty storage: give another one. If workers "
            "have stored their schedules there, give a fresh one and run `treadle move --prepare` before they start"
        )
    known = {MARK, *(use.rule for use in await source.storage.limits(use=False))}
    if extra := sorted(use.rule.name for use in await target.storage.limits(use=False) if use.rule not in known):
        raise MoveFailed(
            f"{target.name} has limits that {source.name} lacks or sets otherwise: {', '.join(extra)}; a move needs an "
            "empty storage: remove them, or give another target"
        )


async def _settled(storage: Storage, wait: float, told: Told) -> None:
    """Until nothing runs any more, or the time is over."""
    until = monotonic() + wait
    while (running := await _running(storage)) and monotonic() < until:
        told("closing", running, None)
        await asyncio.sleep(LOOK)


async def _running(storage: Storage) -> int:
    return sum(count.jobs for count in (await storage.stats()).counts if count.state is State.RUNNING)


async def _carry(run: _Run, since: MoveState | None, step: int, told: Told) -> None:
    """`since`: how far an earlier run came."""
    source, target = run.source, run.target
    total = sum(count.jobs for count in (await source.storage.stats()).counts)
    cursor, done = (since.cursor, since.jobs) if since is not None else (None, 0)
    reached, first = cursor, cursor is None
    while cursor is not None or first:
        load = await source.movable.unload(cursor, step)
        moved = tuple(replace(each, record=handed_over(each.record)) for each in load.jobs)
        cursor, done, first = load.cursor, done + len(moved), False
        # The last load leaves the cursor where it was: going on from there finds all of it known.
        reached = cursor or reached
        given, mark = replace(load, jobs=moved), run.next("filling", source, reached, done)
        await run.patiently(target, functools.partial(target.movable.load, given, mark))
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


async def abort(source: Place, target: Place) -> bool:
    """Give up a move that has not ended, or was only prepared: the source opens again. Whether there was one.

    A target that holds a part of the jobs stays shut: delete it. A `move` under way at this moment raises MoveFailed.
    Raises MoveFailed if the move has ended, for the jobs live at the target then, or if it goes to another target.
    """
    leaving, arriving = await source.movable.read_mark(), await target.movable.read_mark()
    going = leaving is not None and leaving.role in LEAVING
    if not going and (arriving is None or not _resumes(source, leaving, arriving)):
        return False
    move = leaving.move if leaving is not None and going else arriving.move if arriving is not None else ""
    if arriving is not None and arriving.move == move and arriving.role == "arrived":
        raise MoveFailed(
            f"the move to {target.name} has ended, and jobs may have run there since: opening {source.name} again "
            "would run them twice; move them back to an empty storage instead"
        )
    if (arriving is None or arriving.move != move) and leaving is not None and leaving.other != target.name:
        raise MoveFailed(f"{source.name} is moving to {leaving.other}, not to {target.name}: give that target")
    run = _Run(source, target, (leaving, arriving), move)
    if arriving is None or (arriving.move == move and arriving.role == "filling"):
        # The target decides, and comes first: a run that is comparing can no longer open it.
        await run.mark_target("partial" if (await target.storage.stats()).counts else "aborted")
    await run.mark_source("aborted")
    return True
