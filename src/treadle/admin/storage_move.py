"""Moves every job from one storage to another while workers and producers keep running.

An interrupted move is resumed by calling `move` again: both storages store a mark with the progress.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.limits import STORED
from treadle.core.clock import monotonic
from treadle.core.errors import MoveFailed
from treadle.storage import Carried, Chunk, InTheWay, Movable, MoveState, Role, digest, handed_over, movable
from treadle.storage.contract import Storage

STEP: Final = 1_000  # jobs per call
WAIT: Final = 30.0  # s to wait for running jobs to end at the source
LOOK: Final = 0.2  # s between polls
PATIENT: Final = 2.0  # s, at least, to retry setting a mark while other transactions are open
LEAVING: Final = frozenset({"closing", "gone"})
OPEN: Final = frozenset({"arrived", "aborted"})

Told = Callable[[str, int, int | None], None]
"""How far it is: "closing" (jobs that still run), "waiting for ..." (no number: an open transaction is in the way),
"carrying" and "comparing" (jobs done, of how many)."""


class OpenStorage(Struct, frozen=True):
    """An open storage, and its name in messages."""

    storage: Storage
    name: str

    @property
    def movable(self) -> Movable:
        return movable(self.storage, self.name)


class Side(Struct, frozen=True):
    """The contents of one storage: job counts by (queue, task, state), and a digest of the jobs."""

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
        """(queue, task, state, jobs at the source, jobs at the target) for each count that differs."""
        one, other = self.source.counts, self.target.counts
        return [
            (*key, one.get(key, 0), other.get(key, 0))
            for key in sorted({*one, *other})
            if one.get(key, 0) != other.get(key, 0)
        ]


class Moved(Struct, frozen=True):
    """The result of a move. `running`: jobs that were still running when they were moved; they are ready again."""

    jobs: int
    running: int
    rules: int
    digest: str
    resumed: bool


class AlreadyMoved(MoveFailed):
    """An earlier run has moved these jobs to this target. The command exits with 0: such a run may have been killed
    before it could report that."""


class Run:
    """One run of `move`, or of an import (`source` is the name of its file). Its marks replace the marks of earlier
    runs, and storages refuse any further mark of those runs."""

    def __init__(
        self,
        source: str,
        target: OpenStorage,
        marks: Sequence[MoveState | None],
        move: str,
        wait: float = WAIT,
        progress: Told = lambda *_: None,
    ) -> None:
        self.source, self.target, self.move = source, target, move
        self._wait, self._told = max(wait, PATIENT), progress
        self._turn = 1 + max((mark.turn for mark in marks if mark is not None), default=0)
        self._run = str(uuid.uuid4())
        self._steps = itertools.count(1)

    async def mark_source(self, source: OpenStorage, role: Role) -> None:
        mark = self._next(role, self.target.name)
        await self._patiently(source, lambda: source.movable.set_mark(mark))

    async def mark_target(self, role: Role, cursor: str | None = None, jobs: int = 0) -> None:
        mark = self._next(role, self.source, cursor, jobs)
        await self._patiently(self.target, lambda: self.target.movable.set_mark(mark))

    async def load(self, chunk: Chunk, cursor: str | None, jobs: int) -> None:
        """Load a chunk into the target, with a mark that says how far the run came."""
        handed = tuple(replace(job, record=handed_over(job.record)) for job in chunk.jobs)
        mark = self._next("filling", self.source, cursor, jobs)
        load = functools.partial(self.target.movable.load, replace(chunk, jobs=handed), mark)
        await self._patiently(self.target, load)

    async def _patiently(self, place: OpenStorage, act: Callable[[], Awaitable[None]]) -> None:
        """Retry `act` until no other transaction is in the way. Other calls proceed. Raises MoveFailed after `wait`."""
        until = monotonic() + self._wait
        while True:
            try:
                return await act()
            except InTheWay as error:
                if monotonic() > until:
                    raise MoveFailed(
                        f"{error.who} at {place.name} may have stored jobs, and did not end within {self._wait:g} s: "
                        "end it, or give a longer --wait; then call move again"
                    ) from error
                self._told(f"waiting for {error.who} at {place.name}", 0, None)
            await asyncio.sleep(LOOK)

    def _next(self, role: Role, other: str, cursor: str | None = None, jobs: int = 0) -> MoveState:
        return MoveState(
            role=role,
            other=other,
            move=self.move,
            cursor=cursor,
            jobs=jobs,
            turn=self._turn,
            run=self._run,
            step=next(self._steps),
        )


async def move(
    source: OpenStorage, target: OpenStorage, *, wait: float = WAIT, step: int = STEP, progress: Told = lambda *_: None
) -> Moved:
    """Move every job and rule, compare both storages, and open the target. Resumes a move that was interrupted.

    wait  seconds for running jobs to be settled at the source; then they are moved as ready again

    Raises Unsupported, StorageError, and MoveFailed: the target holds other jobs or rules, another run has taken over
    or ended the move, or the copy differs; AlreadyMoved: an earlier run has ended this move. No job is lost by an
    error, because the source keeps every job until it is deleted. Of several concurrent runs the last one continues,
    and the others raise MoveFailed.
    """
    leaving, arriving = await source.movable.read_mark(), await target.movable.read_mark()
    if leaving is not None and leaving.role == "gone" and arriving is not None and _is(arriving, leaving, "arrived"):
        await target.movable.set_mark(arriving)  # an earlier run may have died before every shard got the mark
        raise AlreadyMoved(f"the jobs of {source.name} are already at {target.name}; there is nothing to do")
    resumed = arriving is not None and _resumes(source, leaving, arriving)
    if resumed:
        assert arriving is not None
        run = Run(source.name, target, (leaving, arriving), arriving.move, wait, progress)
        await run.mark_target("filling", arriving.cursor, arriving.jobs)
    else:
        run = await _begin(source, target, leaving, arriving, wait, progress)
    if leaving is None or leaving.role != "gone":
        await _close(source, run, undo=not resumed and (leaving is None or leaving.role != "closing"))
        await _settled(source.storage, wait, progress)
        await run.mark_source(source, "gone")
    running = await _running(source.storage)
    await _carry(source, run, arriving if resumed else None, step, progress)
    comparison = await compare(source, target, step=step, progress=progress)
    if not comparison.same:
        raise MoveFailed(_differing(source, target, comparison))
    await run.mark_target("arrived", jobs=comparison.target.jobs)
    return Moved(comparison.source.jobs, running, comparison.source.rules, comparison.source.digest, resumed)


async def _close(source: OpenStorage, run: Run, undo: bool) -> None:
    """Close the source for new jobs. `undo`: free the target if an open transaction prevents that."""
    try:
        await run.mark_source(source, "closing")
    except MoveFailed as error:
        if undo and isinstance(error.__cause__, InTheWay):
            await run.mark_target("aborted")
        raise


async def prepare(source: OpenStorage, target: OpenStorage) -> None:
    """Mark the target only. Workers and producers that use it wait until a `move` from the source has ended.

    This keeps them from filling a storage that must be empty. `abort` undoes it. Raises as `move`.
    """
    leaving, arriving = await source.movable.read_mark(), await target.movable.read_mark()
    if arriving is None or not _resumes(source, leaving, arriving):
        await _begin(source, target, leaving, arriving)


async def _begin(
    source: OpenStorage,
    target: OpenStorage,
    leaving: MoveState | None,
    arriving: MoveState | None,
    wait: float = WAIT,
    progress: Told = lambda *_: None,
) -> Run:
    """Mark the target of a new move, or of one whose target has been emptied since."""
    await _check_free(source, target, leaving, arriving)
    going_on = leaving is not None and leaving.role in LEAVING
    name = leaving.move if leaving and going_on else str(uuid.uuid4())
    run = Run(source.name, target, (leaving, arriving), name, wait, progress)
    await run.mark_target("filling")
    return run


def _is(mark: MoveState, other: MoveState, role: str) -> bool:
    return mark.move == other.move and mark.role == role


def _resumes(source: OpenStorage, leaving: MoveState | None, arriving: MoveState) -> bool:
    """Whether both marks belong to one interrupted or prepared move. The target is always marked first."""
    if arriving.role != "filling":
        return False
    if leaving is None or leaving.role in OPEN:
        return arriving.other == source.name
    return leaving.move == arriving.move


async def _check_free(
    source: OpenStorage, target: OpenStorage, leaving: MoveState | None, arriving: MoveState | None
) -> None:
    if leaving is not None and leaving.role in LEAVING and leaving.other != target.name:
        raise MoveFailed(
            f"{source.name} is moving, or has moved, to {leaving.other}: continue with that target, or undo the move "
            "with --abort"
        )
    if leaving is not None and leaving.role in ("filling", "partial"):
        raise MoveFailed(
            f"{source.name} is the target of an unfinished move from {leaving.other}: finish that move first"
        )
    if arriving is not None and arriving.role == "partial":
        raise MoveFailed(
            f"{target.name} holds some of the jobs of {arriving.other}, whose move was aborted: delete it, or "
            "give another target"
        )
    if arriving is not None and arriving.role not in OPEN:
        what = f"receives jobs from {arriving.other}" if arriving.role == "filling" else f"moves to {arriving.other}"
        raise MoveFailed(f"{target.name} {what} in another move; give another target")
    if jobs := await total_of(target):
        raise MoveFailed(
            f"{target.name} already holds {jobs:,} job{'' if jobs == 1 else 's'}, and a move needs an empty storage: "
            "give another one. If workers have stored their schedules there, give a new storage and run "
            "`treadle storage move --prepare` before they start"
        )
    known = {STORED, *(use.rule for use in await source.storage.limits(use=False))}
    if extra := sorted(use.rule.name for use in await target.storage.limits(use=False) if use.rule not in known):
        raise MoveFailed(
            f"{target.name} has limits that {source.name} does not have or that differ there: {', '.join(extra)}; "
            "a move needs an empty storage: remove them, or give another target"
        )


async def _settled(storage: Storage, wait: float, progress: Told) -> None:
    """Wait until no job is running, at most `wait` seconds."""
    until = monotonic() + wait
    while (running := await _running(storage)) and monotonic() < until:
        progress("closing", running, None)
        await asyncio.sleep(LOOK)


async def _running(storage: Storage) -> int:
    return sum(queue.running for queue in (await storage.glance()).queues)


async def _carry(source: OpenStorage, run: Run, since: MoveState | None, step: int, progress: Told) -> None:
    """Copy the rows. `since`: the mark of an earlier run, with its progress."""
    total = await total_of(source)
    cursor, done = (since.cursor, since.jobs) if since is not None else (None, 0)
    async for chunk in chunks(source, step, cursor):
        # The last chunk has no cursor: keep the previous one, so that a resumed run repeats only that chunk.
        cursor, done = chunk.cursor or cursor, done + len(chunk.jobs)
        await run.load(chunk, cursor, done)
        progress("carrying", done, total)


async def chunks(place: OpenStorage, step: int, cursor: str | None = None) -> AsyncIterator[Chunk]:
    """All that the storage holds after the cursor, `step` jobs at a time."""
    while True:
        chunk = await place.movable.unload(cursor, step)
        yield chunk
        if chunk.cursor is None:
            return
        cursor = chunk.cursor


async def total_of(place: OpenStorage) -> int:
    """The number of jobs in the storage."""
    return sum(count.jobs for count in (await place.storage.stats()).counts)


async def compare(
    source: OpenStorage, target: OpenStorage, *, step: int = STEP, progress: Told = lambda *_: None
) -> Comparison:
    """Read both storages and compare them. A running job counts as the ready job that it is moved as.

    The result is meaningful only while neither storage is written to.
    """
    return Comparison(await _side(source, step, progress), await _side(target, step, progress))


async def _side(place: OpenStorage, step: int, progress: Told) -> Side:
    total = await total_of(place)
    counts, sum_, rules, done = Counter[tuple[str, str, str]](), 0, 0, 0
    async for chunk in chunks(place, step):
        rules += len(chunk.rules)
        counts.update(_kind(job) for job in chunk.jobs)
        sum_ = (sum_ + digest(chunk.jobs)) % 2**128
        done += len(chunk.jobs)
        progress("comparing", done, total)
        await asyncio.sleep(0)
    return Side(dict(counts), f"{sum_:032x}", rules)


def _kind(carried: Carried) -> tuple[str, str, str]:
    row = handed_over(carried.record)
    return row.job.queue, row.job.task, str(row.state)


def _differing(source: OpenStorage, target: OpenStorage, comparison: Comparison) -> str:
    listed = "; ".join(
        f"{queue}/{task or 'promise'} {state}: {one:,} and {other:,}"
        for queue, task, state, one, other in comparison.differences()[:5]
    )
    return (
        f"{source.name} and {target.name} do not hold the same jobs ({listed or 'equal counts, different contents'}). "
        "The target stays closed, the source keeps all jobs: empty the target and try again, or reopen the source "
        "with --abort"
    )


async def abort(source: OpenStorage, target: OpenStorage) -> bool:
    """Abort an unfinished or prepared move, and open the source again -> whether there was such a move.

    A target that holds a part of the jobs stays closed: delete it. A concurrent `move` raises MoveFailed. Raises
    MoveFailed if the move has ended, because its jobs may have run at the target, or if it goes to another target.
    """
    leaving, arriving = await source.movable.read_mark(), await target.movable.read_mark()
    going = leaving is not None and leaving.role in LEAVING
    if not going and (arriving is None or not _resumes(source, leaving, arriving)):
        return False
    move = leaving.move if leaving is not None and going else arriving.move if arriving is not None else ""
    if arriving is not None and arriving.move == move and arriving.role == "arrived":
        raise MoveFailed(
            f"the move to {target.name} has ended, and jobs may have run there since: reopening {source.name} would "
            "run them twice; move them back to an empty storage instead"
        )
    if (arriving is None or arriving.move != move) and leaving is not None and leaving.other != target.name:
        raise MoveFailed(f"{source.name} is moving to {leaving.other}, not to {target.name}: give that target")
    run = Run(source.name, target, (leaving, arriving), move)
    if arriving is None or (arriving.move == move and arriving.role == "filling"):
        # Mark the target first, so that a concurrent run can no longer open it.
        await run.mark_target("partial" if (await target.storage.stats()).counts else "aborted")
    await run.mark_source(source, "aborted")
    return True
