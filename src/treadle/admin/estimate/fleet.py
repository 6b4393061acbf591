"""One virtual run of a queue: the memory storage decides which jobs start, virtual workers run them, no time passes.

All rules of order, limits, keys and waiting are those of the memory storage, the reference of every other storage.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.estimate.durations import Durations, RunTimes
from treadle.admin.estimate.loading import chunk_of
from treadle.admin.estimate.snapshot import Snapshot
from treadle.core.limit_model import Limit, LimitChange, Resume
from treadle.core.model import Claim, NewJob, Outcome, Record, State
from treadle.errors import QueueFull
from treadle.policy.retry import DEFAULT
from treadle.storage.memory import MemoryStorage
from treadle.storage.transfer import MoveState

T = TypeVar("T")

HORIZON: Final = 7 * 86_400.0  # virtual seconds that a run lasts at most
STARTS: Final = 3_000  # jobs that start in one run at most: 0.3 s of CPU
LEASE: Final = 1e9  # s: in a virtual run no worker is lost


class Extra(Struct, frozen=True, kw_only=True):
    """A change that a run tries out: more workers, other rules, limits that are resumed, a job that is due now."""

    workers: int = 0
    slots: int = 0  # of each of these workers
    limits: tuple[Limit, ...] = ()
    resumed: tuple[str, ...] = ()
    now: bool = False


NOTHING: Final = Extra()


class _Worker:
    """A virtual worker. Workers of one `kind` claim the same jobs."""

    def __init__(self, name: str, queues: Sequence[str], tasks: Sequence[str], slots: int, starts_at: float) -> None:
        self.name, self.queues, self.free, self.starts_at = name, tuple(queues), slots, starts_at
        self.tasks: dict[str, tuple[int | None, float | None]] = dict.fromkeys(tasks, (None, None))
        self.kind = self.queues, tuple(tasks)
        self.turn = 0

    def claim(self, number: int) -> Claim:
        """Each queue gets an equal share; each claim begins with the next queue."""
        self.turn = (self.turn + 1) % len(self.queues)
        order = self.queues[self.turn :] + self.queues[: self.turn]
        share = max(1, self.free // len(order))
        queues = tuple((queue, share) for queue in order)
        return Claim(worker=f"{self.name}#{number}", queues=queues, tasks=self.tasks, limit=self.free, lease=LEASE)


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
        self._chance, self._watched = random.Random(seed), watched
        self._times = RunTimes(durations, random.Random(f"{seed} times"))
        self.now = copy.now
        self._storage = MemoryStorage(lambda: self.now)
        self._storage.checks = False  # type: ignore[misc]  # the rows come from a storage
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._wake = math.inf
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.starts = self.steps = 0
        self.cut = False
        self.open: dict[str, set[str]] = defaultdict(set)
        self._workers = self._crew()
        self._load()

    # --- setting up

    def _crew(self) -> list[_Worker]:
        """The workers with a recent heartbeat, and the additional ones."""
        copy, found = self._copy, list[_Worker]()
        for each in copy.workers:
            if each.age <= each.ttl / 9 + 1 and each.queues:
                starts = copy.now + max(0.0, each.paused - each.age)
                slots = 0 if each.draining else each.slots  # its running jobs end; it claims no more
                found.append(_Worker(each.worker, each.queues, each.tasks, slots, starts))
        like = [each for each in found if self._serves(each)]
        tasks = like[0].tasks if like else dict.fromkeys(row.job.task for row in copy.rows)
        queues = like[0].queues if like else tuple(dict.fromkeys(row.job.queue for row in copy.rows))
        found += [
            _Worker(f"more-{number}", queues, tuple(tasks), self._extra.slots, copy.now)
            for number in range(self._extra.workers if queues else 0)
        ]
        return found

    def _serves(self, worker: _Worker) -> bool:
        row = next((row for row in self._copy.rows if row.job.id == self._watched), None)
        return row is None or (row.job.queue in worker.queues and row.job.task in worker.tasks)

    def _load(self) -> None:
        crew = {worker.name: worker for worker in self._workers}
        chunk = chunk_of(self._copy, set(crew), self._watched if self._extra.now else "")
        at_once(self._storage.load(chunk, MoveState(role="arrived", other="", move="estimate")))
        for carried in chunk.jobs:
            row = carried.record
            if row.state is State.READY and (row.queue_position is not None or row.blocked_on is not None):
                self.open[row.job.queue].add(row.job.id)
            if row.state is State.RUNNING and row.due_at is None:
                worker = crew.get((row.worker or "").rpartition("#")[0])
                if worker is not None:
                    worker.free -= 1
                self._runs(row, worker, self._copy.now - (row.started_at or self._copy.now))
        self._change()

    def _change(self) -> None:
        """Plan what happens by itself later, and make the changes that this run tries out."""
        names, extra = self._extra.resumed, self._extra
        changes: list[LimitChange] = [Resume(name, "paused") for name in names]
        if changes or extra.limits:
            at_once(self._storage.set_limits([*changes, *extra.limits]))
        for use in self._copy.limits:
            for pause in use.pauses:
                if pause.until is not None and use.key == use.rule.name:
                    self._at(pause.until, self._resumes(Resume(use.key, pause.why)))
        for worker in self._workers:
            if worker.starts_at > self.now:
                self._at(worker.starts_at, lambda: None)
        for queue, rate in self._copy.arriving.items():
            examples = [row.job for row in self._copy.recent if row.job.queue == queue and row.job.task]
            if rate and examples:
                self._arrives(rate, examples)

    def _resumes(self, change: Resume) -> Callable[[], None]:
        return lambda: at_once(self._storage.set_limits([change]))

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._number), act))

    # --- running

    def run(self, done: Callable[[VirtualFleet], bool]) -> bool:
        """Run until this is true. False: it does not become true within the horizon, or never by itself; or the run was
        `cut` after STARTS starts."""
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
        """Every worker with a free slot claims. Once a claim brought less than it asked for, workers of the same kind
        would find nothing."""
        idle = [worker for worker in self._workers if worker.free > 0 and worker.starts_at <= self.now]
        self._chance.shuffle(idle)
        nothing_for = set[object]()
        for worker in idle:
            if worker.kind in nothing_for:
                continue
            claimed = at_once(self._storage.claim(worker.claim(next(self._number))))
            if len(claimed.records) < worker.free:
                nothing_for.add(worker.kind)
                if claimed.next_in is not None:
                    self._wakes(self.now + claimed.next_in)
            worker.free -= len(claimed.records)
            for row in claimed.records:
                self._starts(row, worker)

    def _wakes(self, moment: float) -> None:
        if self.now < moment < self._wake or self._wake <= self.now:
            self._wake = max(moment, self.now + 0.001)
            self._at(self._wake, lambda: None)

    def _starts(self, row: Record, worker: _Worker) -> None:
        self.starts += 1
        self.open[row.job.queue].discard(row.job.id)
        self.begun.setdefault(row.job.id, self.now)
        self._runs(row, worker, 0.0)

    def _runs(self, row: Record, worker: _Worker | None, elapsed: float) -> None:
        queue, task = row.job.queue, row.job.task
        if row.function_done:
            left = 0.0
        elif elapsed > 0:
            left = self._times.rest(queue, task, elapsed)
        else:
            left = self._times.draw(queue, task)
        self.ended.setdefault(row.job.id, self.now + left)
        self._at(self.now + left, lambda: self._ends(row, worker))

    def _ends(self, row: Record, worker: _Worker | None) -> None:
        job, attempt = row.job, row.attempt + 1
        out = Outcome(id=job.id, version=row.version, state=State.SUCCEEDED, attempt=attempt)
        fails = self._durations.retried(job.queue, job.task)
        if fails and job.id != self._watched and self._chance.random() < fails:
            delay = max(0.001, DEFAULT.delay(attempt, self._chance.random()))
            out = replace(out, state=State.READY, delay=delay)
        at_once(self._storage.settle([out]))
        if worker is not None:
            worker.free += 1

    # --- arriving

    def _arrives(self, rate: float, examples: list[NewJob]) -> None:
        def arrive() -> None:
            job = self._chance.choice(examples)
            number = next(self._number)
            fresh = replace(job, id=f"~{number}", key=None, after=(), root=None, parent=None, nonce=None)
            with suppress(QueueFull):  # a full queue refuses it in the run, too
                at_once(self._storage.enqueue([fresh]))
                self.open[job.queue].add(fresh.id)
            self._arrives(rate, examples)

        self._at(self.now + self._chance.expovariate(rate), arrive)

    # --- looking

    def blocked(self) -> dict[str, int]:
        """The number of blocked jobs by limit."""
        return {use.key: use.blocked for use in at_once(self._storage.limits()) if use.blocked}

    @property
    def free(self) -> int:
        """Free slots of all workers."""
        return sum(max(0, worker.free) for worker in self._workers)


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call of the memory storage, which waits for nothing."""
    while True:
        try:
            call.send(None)
        except StopIteration as done:
            found: T = done.value
            return found
