"""Repeats virtual runs within a bounded CPU time, and tries out what would change the result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from treadle.admin.estimate import changes
from treadle.admin.estimate.durations import Durations
from treadle.admin.estimate.fleet import NOTHING, STARTS, Extra, VirtualFleet
from treadle.admin.estimate.model import Change, Estimate, QueuePlan, Range, range_of
from treadle.admin.estimate.snapshot import AHEAD, Snapshot
from treadle.admin.explain import MOST_AHEAD
from treadle.core.model import Record, State

CPU: Final = 0.6  # s that one estimate takes at most
SHARE: Final = 0.5  # of it for the situation as it is
MOST, TRIES = 40, 5  # runs of the situation, and of each change, at most
GAIN, SECONDS = 0.05, 1.0  # share and seconds that a change must save to be named
CHANGES: Final = 5  # changes that are named
LOOK: Final = 8  # steps of a run between two looks at what the jobs wait for

Moments = list[float | None]
Run = Callable[[int, Extra], float | None]


def estimate(copy: Snapshot, row: Record, explanation: str, reach: tuple[str, ...] = ()) -> Estimate:
    """When a job starts. Blocks for `CPU` seconds at most: call it in a thread."""
    watch, durations = _Watch(), Durations(copy.metrics, reach)
    ends: dict[int, float] = {}
    id, scale = row.job.id, _scale(copy, row.job.queue)

    def run(seed: int, extra: Extra) -> float | None:
        fleet = VirtualFleet(copy, durations, seed, extra, id)
        if not fleet.run(lambda fleet: id in fleet.ended):
            watch.cut |= fleet.cut
            return copy.now + (fleet.now - copy.now) * scale if fleet.cut else None
        begun = fleet.begun.get(id, copy.now)
        begun = copy.now + (begun - copy.now) * scale
        if extra is NOTHING:
            ends[seed] = begun + fleet.ended[id] - fleet.begun.get(id, copy.now)
        return begun

    moments = watch.repeat(run, NOTHING, MOST, SHARE)
    start = _range(moments)
    options = tuple(changes.of_job(copy, row)) if row.state is not State.RUNNING else ()
    return Estimate(
        id=id,
        at=copy.now,
        explanation=explanation,
        start=None if row.state is State.RUNNING else start,
        end=range_of(list(ends.values())) if start is not None and ends else None,
        ahead=sum(_is_ahead(each, row) for each in copy.rows),
        left_out=copy.left_out,
        simulations=len(moments),
        changes=_worthwhile(watch, run, options, moments, copy.now),
        assumptions=tuple(_assumptions(copy, durations, watch.cut)),
    )


def plan(copy: Snapshot, queue: str, reach: tuple[str, ...] = ()) -> QueuePlan:
    """The near future of a queue. Blocks for `CPU` seconds at most: call it in a thread."""
    watch, durations, scale = _Watch(), Durations(copy.metrics, reach), _scale(copy, queue)
    seen = _Seen(queue)
    waiting = sum(_waits(row, queue) for row in copy.rows)

    def run(seed: int, extra: Extra) -> float | None:
        fleet = VirtualFleet(copy, durations, seed, extra)
        drained = fleet.run(seen.is_empty if extra is NOTHING else lambda fleet: not fleet.open[queue])
        if extra is NOTHING:
            seen.count(fleet, copy.now)
        passed = (fleet.now - copy.now) * scale
        if fleet.cut:  # it goes on as in this part of it
            gone = waiting - len(fleet.open[queue])
            return copy.now + passed * waiting / gone if gone > 0 else None
        return copy.now + passed if drained else None

    moments = watch.repeat(run, NOTHING, MOST, SHARE)
    empty = _range(moments)
    each = next((each for each in copy.glance.queues if each.name == queue), None)
    serving = [
        worker
        for worker in copy.workers
        if queue in worker.queues and worker.age <= worker.ttl / 9 + 1 and not worker.draining
    ]
    slots, arriving = sum(worker.slots for worker in serving), copy.arriving.get(queue, 0.0)
    tasks = [row.job.task for row in (*copy.rows, *copy.recent) if row.job.queue == queue]
    mean = sum(durations.mean(queue, task) for task in tasks) / len(tasks) if tasks else None
    return QueuePlan(
        queue=queue,
        at=copy.now,
        queued=each.queued if each else 0,
        running=each.running if each else 0,
        blocked=each.blocked if each else 0,
        scheduled=each.scheduled if each else 0,
        workers=len(serving),
        slots=slots,
        arriving=arriving,
        leaving=seen.leaving,
        utilisation=arriving * mean / slots if mean is not None and slots else None,
        empty=empty,
        bottleneck=seen.bottleneck,
        left_out=copy.left_out,
        simulations=len(moments),
        changes=_worthwhile(watch, run, tuple(changes.of_queue(copy, queue)), moments, copy.now),
        assumptions=tuple(_assumptions(copy, durations)),
    )


class _Watch:
    """Repeats runs while CPU time is left. `cut`: one of them ended before it had a result."""

    def __init__(self) -> None:
        self._began, self.cut = time.thread_time(), False

    def spent(self) -> float:
        return (time.thread_time() - self._began) / CPU

    def repeat(self, run: Run, extra: Extra, most: int, share: float) -> Moments:
        found: Moments = []
        while len(found) < most and (self.spent() < share or (not found and self.spent() < 1)):
            found.append(run(len(found), extra))
        return found


class _Seen:
    """A queue in the runs without a change: what its jobs waited for, and how many started."""

    def __init__(self, queue: str) -> None:
        self._queue, self._waits = queue, Counter[str]()
        self._starts, self._seconds = 0, 0.0

    def is_empty(self, fleet: VirtualFleet) -> bool:
        """Note now and then what the jobs wait for, then say whether none does."""
        left = len(fleet.open[self._queue])
        if left and not fleet.steps % LOOK:
            blocked = fleet.blocked()
            self._waits.update(blocked)
            queued = max(0, left - sum(blocked.values()))
            self._waits["" if fleet.free <= 0 else f"queue:{self._queue}"] += queued
        return not left

    def count(self, fleet: VirtualFleet, began: float) -> None:
        self._starts, self._seconds = self._starts + fleet.starts, self._seconds + fleet.now - began

    @property
    def leaving(self) -> float | None:
        return self._starts / self._seconds if self._seconds > 0 else None

    @property
    def bottleneck(self) -> str | None:
        if not +self._waits:
            return None
        [(what, _)] = self._waits.most_common(1)
        return f"the limit {what!r}" if what else "the slots of its workers"


def _worthwhile(
    watch: _Watch,
    run: Run,
    options: Sequence[changes.Option],
    before: Moments,
    now: float,
) -> tuple[Change, ...]:
    """The changes that make a difference, the most effective first. Each is compared under the same seeds."""
    found, workers = list[Change](), list[Range | None]()
    for number, option in enumerate(options, 1):
        share = SHARE + (1 - SHARE) * number / len(options)
        moments = watch.repeat(run, option.extra, min(TRIES, len(before)), share)
        then, was = _range(moments), _range(before[: len(moments)])
        if option.extra.workers > 1:  # more of the same must save more than one of them
            was = workers[-1]
        elif option.extra.workers:
            workers.append(then)
        if then is not None and _saves(then, was, now):
            found.append(Change(what=option.what, when=then, command=option.command))
    return tuple(sorted(found, key=lambda each: each.when.median if each.when else 0.0)[:CHANGES])


def _saves(then: Range, was: Range | None, now: float) -> bool:
    """Whether this is earlier by so much that it is worth naming."""
    return was is None or was.median - then.median >= max(SECONDS, GAIN * (was.median - now))


def _range(moments: Moments) -> Range | None:
    """The range of these moments; None if it does not happen in half of the runs."""
    known = [moment for moment in moments if moment is not None]
    return range_of(known) if known and 2 * len(known) > len(moments) else None


def _waits(row: Record, queue: str) -> bool:
    """Whether a job of this queue is queued or blocked."""
    return (
        row.job.queue == queue and row.state is State.READY and bool(row.queue_position is not None or row.blocked_on)
    )


def _is_ahead(each: Record, row: Record) -> bool:
    return each.queue_position is not None and each.job.queue == row.job.queue and each.job.id != row.job.id


def _scale(copy: Snapshot, queue: str) -> float:
    """By how much longer the queue is than what was simulated of it."""
    read = sum(row.queue_position is not None and row.job.queue == queue for row in copy.rows)
    return 1 + copy.left_out / max(1, read)


def _assumptions(copy: Snapshot, durations: Durations, cut: bool = False) -> Iterator[str]:
    if cut:
        yield f"after {STARTS:,} starts a virtual run ends: the job may start later than this"
    for task, what in sorted(durations.unmeasured.items())[:3]:
        yield f"few runs of {task!r} were measured: {what} {'are' if 'times' in what else 'is'} used"
    if any(copy.arriving.values()):
        yield "jobs go on arriving as in the last minutes, and run as long as measured"
    else:
        yield "no further jobs arrive ahead of it, and jobs run as long as measured"
    if copy.left_out:
        yield f"{copy.left_out:,} further jobs take as long as those that were simulated"
    if copy.left_out + AHEAD >= MOST_AHEAD:
        yield f"more than {MOST_AHEAD:,} jobs are ahead, which are not counted: it is later than this"
