"""One virtual run of a queue: the memory storage decides which jobs start, virtual workers run them, no time passes.

All rules of order, limits, keys and waiting are those of the memory storage, the reference of every other storage.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from treadle.admin.estimate.crew import NOTHING, Extra, VirtualWorker, crew_of
from treadle.admin.estimate.durations import Durations, RunTimes
from treadle.admin.estimate.snapshot import Snapshot, chunk_of, refusing
from treadle.core.claim_ids import worker_name
from treadle.core.errors import QueueFull
from treadle.core.limit_model import LimitChange, LimitUse, Resume
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.policy.claim_plan import EVERY, TURN, Head
from treadle.policy.misfits import released_by, waits_until
from treadle.policy.retry import DEFAULT
from treadle.storage import MemoryStorage, MoveState
from treadle.storage.row_rules import order

T = TypeVar("T")

HORIZON: Final = 7 * 86_400.0  # virtual seconds that a run lasts at most
STARTS: Final = 3_000  # jobs that start in one run at most: 0.3 s of CPU
UNSTARTED: Final = 100  # jobs that arrive in a queue until one of them starts


class _CopiedStorage(MemoryStorage):
    checks = False  # the rows come from a storage


class VirtualFleet:
    """One run under one seed.

    begun      job -> the moment at which its run began
    ended      job -> the moment at which this run ended, as soon as it has begun
    starts     number of jobs that have started
    steps      number of moments at which something happened
    open       queue -> jobs that are queued or blocked, or have arrived, and have not started
    """

    def __init__(
        self, copy: Snapshot, durations: Durations, seed: int, extra: Extra = NOTHING, watched: str = ""
    ) -> None:
        self._copy, self._durations, self._extra = copy, durations, extra
        self._rng, self._watched = random.Random(seed), watched
        self._times = RunTimes(durations, random.Random(f"{seed} times"))
        self.now = copy.now
        self._storage = _CopiedStorage(lambda: self.now)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._wake = math.inf
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.starts = self.steps = 0
        self.cut = False
        self.open: dict[str, set[str]] = defaultdict(set)
        self.workers = crew_of(copy, extra, lambda: self.now)
        self._heavy = {task for worker in self.workers for task in worker.uses}
        self._of_heavy: dict[str, set[str]] = defaultdict(set)  # task with resources -> its jobs that do not run
        self._look_at = math.inf
        self._settling: set[str] = set()  # workers whose jobs have ended since the last claims
        self._unstarted: dict[str, int] = defaultdict(int)  # queue -> jobs that have arrived since one has started
        self._stopped: dict[str, Callable[[], None]] = {}  # queue -> lets jobs arrive again
        self._fail_at_once: set[str] = set()  # jobs that no version could read in time
        self._load()

    # --- setting up

    def _load(self) -> None:
        crew = {worker.name: worker for worker in self.workers}
        has = {name: dict(worker.unused) for name, worker in crew.items()}
        chunk = chunk_of(self._copy, set(crew), self._watched if self._extra.now else "")
        at_once(self._storage.load(chunk, MoveState(role="arrived", other="", move="estimate")))
        for carried in chunk.jobs:
            row = carried.record
            if row.state is State.READY and (row.queue_position is not None or row.blocked_on is not None):
                self.open[row.job.queue].add(row.job.id)
            if row.state is not State.RUNNING and row.job.task in self._heavy:
                self._of_heavy[row.job.task].add(row.job.id)
            if row.state is State.RUNNING and row.due_at is None:
                worker = crew.get(worker_name(row.worker or ""))
                if worker is not None:
                    worker.begins(row.job.task)
                self._runs(row, worker, self._copy.now - (row.started_at or self._copy.now))
            if (until := waits_until(row)) is not None and released_by(row) is not None:
                self._at(max(self.now, until), partial(self._gives_up, row.job.id))
        if self._copy.partial and self._copy.rows:
            self._hold_unseen(crew, has)
        self._change()

    def _gives_up(self, id: str) -> None:
        """A job that waits for another version of its code fails with the next claim. This does not count as a
        start."""
        if id != self._watched:
            self._fail_at_once.add(id)
            for worker in self.workers:
                worker.left_out.discard(id)

    def _hold_unseen(self, crew: Mapping[str, VirtualWorker], has: Mapping[str, Mapping[str, int]]) -> None:
        """Jobs of queues that the caller may not see hold resources, too: for as long as a run of the caller's job
        takes."""
        job = self._copy.rows[0].job
        for name, worker in crew.items():
            held = worker.hold_unseen(has[name])
            if held:
                self._at(self.now + self._times.draw(job.queue, job.task), partial(worker.gives_back, held))

    def _change(self) -> None:
        """Plan what happens by itself later, and make the changes that this run tries out."""
        changes: list[LimitChange] = [Resume(name, "paused") for name in self._extra.resumed]
        self._set_limits([*changes, *map(refusing, self._extra.limits)])
        for use in self._copy.limits:
            for pause in use.pauses:
                if pause.until is not None and use.key == use.rule.name:
                    self._at(pause.until, partial(self._set_limits, [Resume(use.key, pause.why)]))
        for worker in self.workers:
            if worker.starts_at > self.now:
                self._at(worker.starts_at, lambda: None)
        for queue, rate in self._copy.arriving.items():
            examples = [row.job for row in self._copy.recent if row.job.queue == queue and row.job.task]
            if rate and examples:
                self._arrives(rate, examples)

    def _set_limits(self, changes: Sequence[LimitChange]) -> None:
        at_once(self._storage.set_limits(changes))

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._number), act))

    # --- running

    def run(self, done: Callable[[VirtualFleet], bool]) -> bool:
        """Run until `done` is true. Returns False if that does not happen within the horizon, can never happen by
        itself, or if the run was `cut` after STARTS starts."""
        until = self.now + HORIZON
        self.cut = False
        self._claims()
        while not done(self):
            self.cut = self.starts >= STARTS
            if self.cut or not self._events or self._events[0][0] > until:
                return False
            self.now, _, act = heapq.heappop(self._events)
            self.now = max(self.now, self._copy.now)
            self.steps += 1
            act()
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            self._claims()
        return True

    def _claims(self) -> None:
        """Every worker with a free slot claims, as long as its claims are full. Workers whose jobs have just ended come
        first: they claim in the call that settles. Once a claim has returned fewer jobs than it asked for, another
        claim for the same or fewer tasks would find nothing."""
        idle = [worker for worker in self.workers if worker.free > 0 and worker.starts_at <= self.now]
        self._rng.shuffle(idle)
        idle.sort(key=lambda worker: worker.name not in self._settling)
        self._settling.clear()
        nothing_for = set[object]()
        for worker in idle:
            while self._claim(worker, nothing_for):
                pass
        self._plans_look()

    def _claim(self, worker: VirtualWorker, nothing_for: set[object]) -> bool:
        """One claim. Returns whether another one follows at once."""
        plan, brought = worker.planner.plan(worker.free, worker.unused, worker.offers), list[str]()
        claim = worker.claim(plan, next(self._number))
        kind = frozenset(worker.queues), frozenset(claim.tasks or ()), claim.running
        if kind not in nothing_for:
            claimed = at_once(self._storage.claim(claim))
            if len(claimed.records) < plan.limit:
                nothing_for.add(kind)
                if claimed.next_in is not None:
                    self._wakes(self.now + claimed.next_in)
            for row in claimed.records:
                self._starts(row, worker)
                brought.append(row.job.task)
        worker.planner.answered(plan, brought)
        return worker.free > 0 and (plan.narrow or len(brought) >= plan.limit)

    def _plans_look(self) -> None:
        """Plan the next look for turns of large jobs, while anything else can happen."""
        planners = [worker.planner for worker in self.workers if not worker.planner.reserved]
        since = [moment for planner in planners for task, moment in planner.waits.items() if self._of_heavy.get(task)]
        if since and self._events:
            moment = max(self.now + EVERY, min(since) + TURN + EVERY / 2)
            if moment < self._look_at or self._look_at <= self.now:
                self._look_at = moment
                self._at(moment, self._looks)

    def _looks(self) -> None:
        """Keep resources free for a task that has long not fitted."""
        for worker in self.workers:
            if overdue := worker.planner.overdue():
                heads = [head for head in self._heads(worker.offers) if head.queue in worker.queues]
                worker.planner.give_turn(overdue, heads, worker.uses)

    def _heads(self, tasks: Iterable[str]) -> list[Head]:
        """The first queued job of each of these tasks, by queue."""
        heads: dict[tuple[str, str], Head] = {}
        for row in self.rows(id for task in tasks for id in self._of_heavy.get(task, ())):
            if row.state is State.READY and row.queue_position is not None:
                head = Head(row.job.task, row.job.queue, order(row))
                key = head.task, head.queue
                if key not in heads or head.turn < heads[key].turn:
                    heads[key] = head
        return list(heads.values())

    def _wakes(self, moment: float) -> None:
        if self.now < moment < self._wake or self._wake <= self.now:
            self._wake = max(moment, self.now + 0.001)
            self._at(self._wake, lambda: None)

    def _starts(self, row: Record, worker: VirtualWorker) -> None:
        self.starts += 1
        worker.begins(row.job.task)
        self._unstarted[row.job.queue] = 0
        if (arrives := self._stopped.pop(row.job.queue, None)) is not None:
            arrives()
        if row.job.task in self._heavy:
            self._of_heavy[row.job.task].discard(row.job.id)
        self.open[row.job.queue].discard(row.job.id)
        self.begun.setdefault(row.job.id, self.now)
        self._runs(row, worker, 0.0)

    def _runs(self, row: Record, worker: VirtualWorker | None, elapsed: float) -> None:
        queue, task = row.job.queue, row.job.task
        if row.function_done or row.job.id in self._fail_at_once:
            remaining = 0.0
        elif elapsed > 0:
            remaining = self._times.rest(queue, task, elapsed)
        else:
            remaining = self._times.draw(queue, task)
        self.ended.setdefault(row.job.id, self.now + remaining)
        self._at(self.now + remaining, lambda: self._ends(row, worker))

    def _ends(self, row: Record, worker: VirtualWorker | None) -> None:
        job, attempt = row.job, row.attempt + 1
        out = Outcome(id=job.id, version=row.version, state=State.SUCCEEDED, attempt=attempt)
        fails = self._durations.retried(job.queue, job.task)
        if fails and job.id != self._watched and self._rng.random() < fails:
            delay = max(0.001, DEFAULT.delay(attempt, self._rng.random()))
            out = replace(out, state=State.READY, delay=delay)
            if job.task in self._heavy:
                self._of_heavy[job.task].add(job.id)
        at_once(self._storage.settle([out]))
        if worker is not None:
            worker.ends(job.task)
            self._settling.add(worker.name)

    # --- arriving

    def _arrives(self, rate: float, examples: list[NewJob]) -> None:
        """Plan the arrival of a job like one of these; `rate` of them arrive each second."""
        self._at(self.now + self._rng.expovariate(rate), partial(self._arrive, rate, examples))

    def _arrive(self, rate: float, examples: list[NewJob]) -> None:
        job = self._rng.choice(examples)
        fresh = replace(job, id=f"~{next(self._number)}", key=None, after=(), root=None, parent=None, nonce=None)
        with suppress(QueueFull):  # a full queue refuses it in the run, too
            at_once(self._storage.enqueue([fresh]))
            self.open[job.queue].add(fresh.id)
            if job.task in self._heavy:
                self._of_heavy[job.task].add(fresh.id)
        self._unstarted[job.queue] += 1
        if self._unstarted[job.queue] >= UNSTARTED:  # a claim looks at each job of a queue that is paused
            self._stopped[job.queue] = partial(self._arrives, rate, examples)
        else:
            self._arrives(rate, examples)

    # --- looking

    def rows(self, ids: Iterable[str]) -> list[Record]:
        """The rows of these jobs now."""
        return [row for row in at_once(self._storage.get(list(ids))) if row is not None]

    def limits(self) -> tuple[LimitUse, ...]:
        """The limits and their use now."""
        return at_once(self._storage.limits())


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call of the memory storage, which waits for nothing."""
    while True:
        try:
            call.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
