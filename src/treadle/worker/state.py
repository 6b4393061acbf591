"""The jobs that run here, and the moments at which they must stop: one heap and one timer for all of them.

Without it each job would need a timer of its own: `asyncio.timeout` costs 2.3 us a job, an entry here 0.3.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

from msgspec import Struct

from treadle.core import defaults
from treadle.core.model import Outcome, Record
from treadle.execution.context import ENDED, Context
from treadle.execution.runner import AnyTask, OwnTask
from treadle.policy import judge
from treadle.policy.judge import Rules

SWEEP = 128  # entries: each of an ended run keeps its arguments and result alive


class RunningJob(Struct, eq=False):
    """One job that runs here."""

    record: Record
    task: AnyTask | OwnTask
    context: Context
    rules: Rules
    lease: float
    handle: asyncio.Task[None] | None = None
    begun: bool = False  # its first step was taken
    cut: bool = False  # it was cancelled
    ended: bool = False
    refused: bool = False  # the storage could not keep its outcome
    blocked_since: float = 0.0  # when its outcome first met a row that somebody else holds
    gathered: bool = False  # an item of a batch: it takes no slot, its call does

    def tell(self) -> None:
        """Let the function know that it should end soon, if it looks."""
        self.context.stop("stop")

    def stop(self, why: str) -> None:
        """Make the function stop: cancel it if it can be, let it know if it looks. Once."""
        if self.ended or self.cut:
            return
        self.cut = True
        self.context.stop(why)
        # A task cancelled before its first step never runs its `finally`, and its slot would be lost.
        if self.handle is not None and self.begun:
            self.handle.cancel()


class Timers:
    """When which run must stop. Entries of runs that have ended are passed over, and swept out when they are many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, RunningJob, str]] = []
        self._number = count()
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at = SWEEP

    def add(self, seconds: float, run: RunningJob, why: str) -> None:
        when = self._loop.time() + max(0.0, seconds)
        heapq.heappush(self._heap, (when, next(self._number), run, why))
        if self._heap[0][2] is run:
            self._arm()
        elif len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP, 2 * len(self._heap))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        now = self._loop.time() + 0.000_5
        while self._heap and self._heap[0][0] <= now:
            _, _, run, why = heapq.heappop(self._heap)
            run.stop(why)
        while self._heap and self._heap[0][2].ended:
            heapq.heappop(self._heap)
        self._timer = None
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


if sys.version_info >= (3, 12):  # a no-op job: 1.7 us eager, 5.8 as a task of its own turn
    new_task = functools.partial(asyncio.Task, eager_start=True)
else:
    new_task = asyncio.Task  # `create_task` does no more, and takes 0.6 us for it
AGAIN = 1_000  # jobs claimed more than once of which the last version is remembered


class WorkerState:
    """What the loops of one worker share: who runs, how many more may, and what is to be settled."""

    def __init__(self, name: str, concurrency: int) -> None:
        self.name, self.concurrency = name, concurrency
        self.loop = asyncio.get_running_loop()
        self._surroundings = contextvars.copy_context()  # of the worker's start
        # Tickets begin elsewhere at each start: a worker started again under its name must not be answered with
        # the jobs of the one before, which may still run them under the same version.
        self._tickets = count(int.from_bytes(os.urandom(6)))
        self.free = concurrency
        self.asking = 0  # claims under way besides those of the pumps
        self.running: dict[str, RunningJob] = {}
        self.again: dict[str, int] = {}  # jobs claimed more than once -> the version of the last claim here
        self.outcomes: list[tuple[RunningJob, Outcome]] = []
        self.settling: dict[int, list[tuple[RunningJob, Outcome]]] = {}  # by pump: sent, and not known to be stored
        # Runs that did not just succeed, until they are settled -> what the function raised, if it did.
        self.troubles: dict[Context, BaseException | None] = {}
        self.wake = asyncio.Event()  # something to settle, a slot, a hint, or the end
        self.beat_now = asyncio.Event()  # a note to save, or a job taken from us
        self.idle = False  # a claim found the line empty, and none since more than one pump can take
        self.flowing = False  # the last claim brought jobs
        self.behind_since: float | None = None  # since when every claim has come back full, or could not be made
        self.own = False  # an outcome brings a job of Treadle's own, which is not to wait
        self.watched = False  # the first pump waits until the line may have something
        self.hinted = False  # something was spoken since
        self.pause = 0.0  # s the throttle asks for
        self.pause_ends = 0.0  # when, by the clock of the loop
        self.stopping = False
        self.claiming = True
        self.beat_every = 0.0  # s the heartbeat sleeps now

    def own_context(self) -> contextvars.Context:
        """Where one job runs: the context variables that the worker was started with, whatever code begins the job."""
        return self._surroundings.copy()

    def ticket(self) -> str:
        """A name for one claim, never used before."""
        return f"{self.name}#{next(self._tickets)}"

    def noted(self) -> None:
        """There is a note to save. May be called in any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody saves notes any more
            self.loop.call_soon_threadsafe(self.beat_now.set)

    def unsettled(self, but: int | None = None) -> list[RunningJob]:
        """The runs whose outcomes are not known to be stored; without those that pump `but` is sending."""
        sent = [run for number, outs in self.settling.items() if number != but for run, _ in outs]
        return sent + [run for run, _ in self.outcomes]

    def begin(self, run: RunningJob, work: Coroutine[Any, Any, None]) -> None:
        """Have the work done that ends this run."""
        record, id = run.record, run.record.job.id
        self.running[id] = run
        if record.version > 1:
            self.again[id] = record.version
            if len(self.again) > AGAIN:
                del self.again[next(iter(self.again))]
        if run.lease and run.lease / 3 < self.beat_every:
            self.beat_now.set()
        # With the name it shows whose it is, and without one CPython 3.11 writes a number first: 0.1 us.
        run.handle = new_task(work, loop=self.loop, name=id, context=self.own_context())

    def hand_back_unbegun(self) -> None:
        """End the runs whose tasks a program cancelled before their first step: no line of them runs. From Python 3.12
        on they begin at once."""
        for run in list(self.running.values()):
            if run.handle is not None and run.handle.done() and not run.begun:
                self.end(run, judge.handed_back(run.record))

    def came_back(self, id: str, version: int) -> bool:
        """Whether this worker has claimed the job again since: then what it settled at `version` was applied, and
        only the answer that said so was lost."""
        return self.again.get(id, 0) > version

    def end(self, run: RunningJob, outcome: Outcome | None) -> None:
        """An append: no await, no future, no timer per job."""
        run.ended = True
        context, id = run.context, run.record.job.id
        if context.place is not None:
            context.place = ENDED
        if self.running.get(id) is run:
            del self.running[id]
        if not run.gathered:
            self.free += 1
        if outcome is not None:
            self.outcomes.append((run, outcome))
            if outcome.then and any(new.queue == defaults.OWN_QUEUE for new in outcome.then):
                self.own = True
        else:
            self.troubles.pop(context, None)
        self.wake.set()
