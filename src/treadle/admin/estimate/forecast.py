"""Repeats virtual runs within a bounded CPU time, and tries out what would change the result."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from treadle.admin.estimate import changes
from treadle.admin.estimate.crew import NOTHING, Extra
from treadle.admin.estimate.durations import Durations
from treadle.admin.estimate.fleet import STARTS, VirtualFleet
from treadle.admin.estimate.model import Change, Estimate, QueuePlan, Range, range_of
from treadle.admin.estimate.snapshot import AHEAD, Snapshot
from treadle.admin.explain import MOST_AHEAD
from treadle.admin.explain.workers import claims
from treadle.core.limit_model import LimitUse
from treadle.core.model import Presence, Record, State
from treadle.core.placement_words import coded, needs_of, obstacle
from treadle.policy.misfits import released_by
from treadle.storage import rule_for
from treadle.storage.row_rules import order

LOOK: Final = 8  # steps of a run between two checks
ROWS: Final = 30  # jobs that one look asks about
SLOTS: Final = "the slots of its workers"


class Wait(NamedTuple):
    """The cause for which a job waits. `for_ever`: it does not end by itself."""

    what: str
    for_ever: bool = False


class Waits:
    """The causes for which the jobs of a queue waited in the runs without a change, and how many jobs started."""

    def __init__(self, copy: Snapshot, queue: str) -> None:
        self._copy, self._queue = copy, queue
        self._passing: dict[str, float] = defaultdict(float)
        self._lasting: dict[str, float] = defaultdict(float)
        self._starts, self._seconds = 0, 0.0

    def is_empty(self, fleet: VirtualFleet) -> bool:
        """Note now and then what the jobs wait for, then say whether none does."""
        unstarted = len(fleet.open[self._queue])
        if unstarted and not fleet.steps % LOOK:
            self._note(fleet, self._passing)
        return not unstarted

    def _note(self, fleet: VirtualFleet, causes: dict[str, float]) -> None:
        unstarted = fleet.open[self._queue]
        rows, uses = fleet.rows(islice(unstarted, ROWS)), _by_key(fleet)
        for row in rows:
            if (wait := wait_of(row, fleet, self._copy, uses)) is not None:
                causes[wait.what] += len(unstarted) / len(rows)

    def count(self, fleet: VirtualFleet, began: float, drained: bool) -> None:
        """Note the end of a run. If the queue does not become empty, only the causes of its last jobs count."""
        self._starts, self._seconds = self._starts + fleet.starts, self._seconds + fleet.now - began
        if not drained and not fleet.cut:
            self._note(fleet, self._lasting)

    @property
    def leaving(self) -> float | None:
        return self._starts / self._seconds if self._seconds > 0 else None

    @property
    def bottleneck(self) -> str | None:
        """The most frequent cause, as words; None: no job waited."""
        causes = self._lasting or self._passing
        return max(causes, key=causes.__getitem__) if causes else None


def never_starts(fleet: VirtualFleet, copy: Snapshot, id: str) -> bool:
    """Whether a job waits at the end of a run for something that does not end by itself."""
    rows = fleet.rows([id])
    wait = wait_of(rows[0], fleet, copy, _by_key(fleet)) if rows else None
    return wait is not None and wait.for_ever


def wait_of(row: Record, fleet: VirtualFleet, copy: Snapshot, uses: dict[str, LimitUse]) -> Wait | None:
    """The cause for which a job waits now; None: it may start with the next claim, or is not due."""
    if row.blocked_on is not None:
        return _limit(rule_for(uses, row.blocked_on), row.blocked_on)
    if row.queue_position is None:
        return None
    use = rule_for(uses, f"queue:{row.job.queue}")
    if use is not None and not _has_room(use):
        return _limit(use, use.rule.name)
    return _workers(row, fleet, copy)


def _by_key(fleet: VirtualFleet) -> dict[str, LimitUse]:
    return {use.key: use for use in fleet.limits()}


def _has_room(use: LimitUse) -> bool:
    return (use.rule.slots is None or use.used < use.rule.slots) and use.next_start is None and use.rule.rate != 0


def _limit(use: LimitUse | None, key: str) -> Wait:
    limit = f"the limit {key!r}"
    if use is None or (use.rule.slots != 0 and use.rule.rate != 0):
        return Wait(limit)
    if any(pause.why == "paused" for pause in use.pauses) or not use.pauses:
        return Wait(f"{limit}, which is paused", for_ever=True)
    return Wait(f"{limit}, which rests")


def _workers(row: Record, fleet: VirtualFleet, copy: Snapshot) -> Wait | None:
    queue, task = row.job.queue, row.job.task
    serving = [worker for worker in fleet.workers if queue in worker.queues and worker.claims_more]
    if not serving:
        return Wait("a worker: none serves it", for_ever=True)
    able = [worker for worker in serving if task in worker.tasks]
    if not able:
        return Wait(_no_place(task, copy), for_ever=True)
    able = [worker for worker in able if row.job.id not in worker.left_out]
    if not able:
        return Wait(f"a worker with another version of task {task!r}", for_ever=True)
    claiming = [worker for worker in able if worker.starts_at <= fleet.now]
    if not claiming:
        return Wait("its workers, which a throttle pauses")
    roomy = [worker for worker in claiming if worker.lacks(task) is None]
    if not roomy and any(worker.free > 0 for worker in claiming):
        return Wait(f"the resource {claiming[0].lacks(task)!r} of its workers")
    if all(worker.free <= 0 for worker in roomy or claiming):
        return Wait(SLOTS)
    return None


def _no_place(task: str, copy: Snapshot) -> str:
    """Why no worker of its queue can run the task."""
    needs = needs_of(copy.workers, task)
    why = None if needs is None else obstacle(needs, coded(copy.workers, task))
    return f"a worker for task {task!r}: {why or 'none of the queue has it'}"


CPU: Final = 0.6  # s that one estimate takes at most
SHARE: Final = 0.5  # part of the time for the situation as it is
MOST, TRIES = 40, 5  # runs of the situation, and of each change, at most
GAIN, SECONDS = 0.05, 1.0  # share and seconds that a change must save to be named
CHANGES: Final = 5  # changes that are named

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
            if not fleet.cut or never_starts(fleet, copy, id):
                return None
            watch.cut = True
            return copy.now + (fleet.now - copy.now) * scale
        begun = fleet.begun.get(id, copy.now)
        begun = copy.now + (begun - copy.now) * scale
        if extra is NOTHING:
            ends[seed] = begun + fleet.ended[id] - fleet.begun.get(id, copy.now)
        return begun

    moments = watch.repeat(run, NOTHING, MOST, SHARE)
    start = _range(moments, copy.now)
    options = tuple(changes.of_job(copy, row)) if row.state is not State.RUNNING else ()
    return Estimate(
        id=id,
        at=copy.now,
        explanation=explanation,
        start=None if row.state is State.RUNNING else start,
        end=range_of(list(ends.values()), copy.now) if start is not None and ends else None,
        ahead=sum(_is_ahead(other, row) for other in copy.rows),
        left_out=copy.left_out,
        simulations=len(moments),
        changes=_worthwhile(watch, run, options, moments, copy.now),
        assumptions=tuple(_assumptions(copy, durations, watch.cut)),
    )


def plan(copy: Snapshot, queue: str, reach: tuple[str, ...] = ()) -> QueuePlan:
    """The near future of a queue. Blocks for `CPU` seconds at most: call it in a thread."""
    watch, durations, scale = _Watch(), Durations(copy.metrics, reach), _scale(copy, queue)
    seen = Waits(copy, queue)
    waiting = sum(_waits(row, queue) for row in copy.rows)

    def run(seed: int, extra: Extra) -> float | None:
        fleet = VirtualFleet(copy, durations, seed, extra)
        drained = fleet.run(seen.is_empty if extra is NOTHING else lambda fleet: not fleet.open[queue])
        if extra is NOTHING:
            seen.count(fleet, copy.now, drained)
        passed = (fleet.now - copy.now) * scale
        if fleet.cut:  # assume that the rest of the run is like this part
            gone = waiting - len(fleet.open[queue])
            return copy.now + passed * waiting / gone if gone > 0 else None
        return copy.now + passed if drained else None

    moments = watch.repeat(run, NOTHING, MOST, SHARE)
    empty = _range(moments, copy.now)
    counts = next((counts for counts in copy.glance.queues if counts.name == queue), None)
    tasks = [row.job.task for row in (*copy.rows, *copy.recent) if row.job.queue == queue]
    serving = [worker for worker in copy.workers if _runs_jobs_of(worker, queue, tasks)]
    arriving = copy.arriving.get(queue, 0.0)
    return QueuePlan(
        queue=queue,
        at=copy.now,
        queued=counts.queued if counts else 0,
        running=counts.running if counts else 0,
        blocked=counts.blocked if counts else 0,
        scheduled=counts.scheduled if counts else 0,
        workers=len(serving),
        slots=sum(worker.slots for worker in serving),
        arriving=arriving,
        leaving=seen.leaving,
        utilisation=_utilisation(arriving, queue, tasks, serving, durations),
        empty=empty,
        bottleneck=seen.bottleneck,
        left_out=copy.left_out,
        simulations=len(moments),
        changes=_worthwhile(watch, run, tuple(changes.of_queue(copy, queue)), moments, copy.now),
        assumptions=tuple(_assumptions(copy, durations)),
    )


def _runs_jobs_of(worker: Presence, queue: str, tasks: Collection[str]) -> bool:
    """Whether a worker claims jobs of this queue now, and has one of its tasks."""
    return claims(worker) and queue in worker.queues and (not tasks or any(task in worker.tasks for task in tasks))


def _utilisation(
    arriving: float, queue: str, tasks: Sequence[str], serving: Sequence[Presence], durations: Durations
) -> float | None:
    """The share of the slots that the arriving jobs keep busy, or of the resource of which they use the largest
    share."""
    slots = sum(worker.slots for worker in serving)
    if not tasks or not slots:
        return None
    busy: dict[str, float] = defaultdict(float)  # resource -> seconds of an average run, times its amount; "": slots
    has = Counter({"": slots})
    for task in tasks:
        mean, needs = durations.mean(queue, task) / len(tasks), needs_of(serving, task)
        for name, amount in ("", 1), *(needs.uses if needs is not None else ()):
            busy[name] += mean * amount
    for worker in serving:
        has.update({name: amount for name, amount, _ in worker.resources})
    return max(arriving * seconds / has[name] for name, seconds in busy.items() if has[name])


class _Watch:
    """Repeats runs while CPU time is left. `cut`: one of them ended before it had a result."""

    def __init__(self) -> None:
        self._began, self.cut = time.thread_time(), False

    def spent(self) -> float:
        return (time.thread_time() - self._began) / CPU

    def repeat(self, run: Run, extra: Extra, most: int, share: float) -> Moments:
        moments: Moments = []
        while len(moments) < most and (self.spent() < share or (not moments and self.spent() < 1)):
            moments.append(run(len(moments), extra))
        return moments


def _worthwhile(
    watch: _Watch,
    run: Run,
    options: Sequence[changes.Option],
    before: Moments,
    now: float,
) -> tuple[Change, ...]:
    """The changes that make a difference, the most effective first. Each is compared under the same seeds."""
    worthwhile, workers = list[Change](), list[Range | None]()
    for number, option in enumerate(options, 1):
        share = SHARE + (1 - SHARE) * number / len(options)
        moments = watch.repeat(run, option.extra, min(TRIES, len(before)), share)
        then, was = _range(moments, now), _range(before[: len(moments)], now)
        if option.extra.workers > 1:  # several more workers must save more time than one
            was = workers[-1]
        elif option.extra.workers:
            workers.append(then)
        if then is not None and _saves(then, was, now):
            worthwhile.append(Change(what=option.what, when=then, command=option.command))
    return tuple(sorted(worthwhile, key=lambda change: change.when.median if change.when else 0.0)[:CHANGES])


def _saves(then: Range, was: Range | None, now: float) -> bool:
    """Whether this is earlier by so much that it is worth naming."""
    return was is None or was.median - then.median >= max(SECONDS, GAIN * (was.median - now))


def _range(moments: Moments, now: float) -> Range | None:
    """The range of these moments; None if it does not happen in half of the runs."""
    known = [moment for moment in moments if moment is not None]
    return range_of(known, now) if known and 2 * len(known) > len(moments) else None


def _waits(row: Record, queue: str) -> bool:
    """Whether a job of this queue is queued or blocked."""
    return (
        row.job.queue == queue and row.state is State.READY and bool(row.queue_position is not None or row.blocked_on)
    )


def _is_ahead(other: Record, row: Record) -> bool:
    if other.queue_position is None or other.job.queue != row.job.queue or other.job.id == row.job.id:
        return False
    return row.queue_position is None or order(other) < order(row)


def _scale(copy: Snapshot, queue: str) -> float:
    """How many times as long as the simulated part the queue is."""
    read = sum(row.queue_position is not None and row.job.queue == queue for row in copy.rows)
    return 1 + copy.left_out / max(1, read)


def _unknown_code(row: Record, copy: Snapshot) -> str | None:
    """The worker that could not read this job, if it is no longer alive, so that the version of its code is unknown."""
    by = released_by(row)
    return by if by is not None and all(worker.worker != by for worker in copy.workers) else None


def _assumptions(copy: Snapshot, durations: Durations, cut: bool = False) -> Iterator[str]:
    if cut:
        yield f"after {STARTS:,} starts a virtual run ends: the job may start later than this"
    for task, what in sorted(durations.unmeasured.items())[:3]:
        yield f"few runs of {task!r} were measured: {what} {'are' if 'times' in what else 'is'} used"
    if any(copy.arriving.values()):
        yield "jobs go on arriving as in the last minutes, and run as long as measured"
    else:
        yield "no further jobs arrive ahead of it, and jobs run as long as measured"
    if copy.partial and any(worker.resources for worker in copy.workers):
        yield "jobs of other queues, which are not shown here, use their resources for as long as one run"
    for by in sorted({by for row in copy.rows if (by := _unknown_code(row, copy)) is not None})[:1]:
        yield f"worker {by!r} could not read some jobs and is gone; the code of the other workers is another one"
    if copy.left_out:
        yield f"{copy.left_out:,} further jobs take as long as those that were simulated"
    if copy.left_out + AHEAD >= MOST_AHEAD:
        yield f"more than {MOST_AHEAD:,} jobs are ahead, which are not counted: it is later than this"
