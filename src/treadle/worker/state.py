"""The state that a worker's loops share: running jobs, free slots, outcomes to settle, and demand."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

from treadle.core import defaults
from treadle.core.model import Outcome
from treadle.execution.job_run import ENDED, JobRun
from treadle.policy import judge
from treadle.worker.demand import Demand
from treadle.worker.resource_use import ResourceUse
from treadle.worker.running_job import RunningJob, Unconfirmed, new_task, settled_before

KEPT = 1_000  # outcomes after which this worker has claimed their jobs, the last ones


class Slots:
    """The number of jobs that may still start. Below 0 while more batch calls run than there are slots."""

    __slots__ = ("free",)

    def __init__(self, free: int) -> None:
        self.free = free

    def take(self, count: int = 1) -> None:
        self.free -= count

    def release(self, count: int = 1) -> None:
        self.free += count


class WorkerState:
    """One for each start of a worker. Its methods run on the worker's event loop, except `note_changed`.

    A worker claims until it stops. A worker without queues never claims by itself, and runs the jobs passed to
    `run_ids`. So `claiming` and `stopping` are never both true.

    resource_use  what the running jobs use of its resources; None: a worker without resources
    """

    def __init__(self, name: str, concurrency: int, resource_use: ResourceUse | None = None) -> None:
        self.name, self.concurrency, self.resource_use = name, concurrency, resource_use
        self.loop = asyncio.get_running_loop()
        self._start_context = contextvars.copy_context()
        # Claim ids begin at a random number: a worker restarted under the same name must not receive the jobs of the
        # previous one, which may still run them under the same version.
        self._claim_ids = count(int.from_bytes(os.urandom(6)))
        self.wake = asyncio.Event()  # an outcome to settle, a free slot, a notification, or the stop
        self.heartbeat_now = asyncio.Event()  # a note to save, or a job that may be lost
        self.slots = Slots(concurrency)
        self.unconfirmed = Unconfirmed()
        self.demand = Demand(self.loop, self.wake)
        self.running: dict[str, RunningJob] = {}
        self._applied: dict[tuple[str, int], None] = {}  # the outcomes after which this worker has claimed their jobs
        # Runs with another outcome than success, until they are settled -> the exception of the function, if any.
        self.troubles: dict[JobRun, BaseException | None] = {}
        self.claims_by_id = 0  # under way
        self.apart: set[asyncio.Task[None]] = set()  # settle the outcomes that other transactions hold up
        self.started = 0  # jobs, since the worker was started
        self.draining = ""  # why the process is replaced, once it is
        self.heartbeat_in = 0.0  # seconds between this heartbeat and the next
        self.pause = 0.0  # seconds, as returned by the throttle
        self.pause_ends = 0.0  # by the event loop's clock
        self.claiming, self.stopping = True, False

    # --- the life of the worker

    def stop(self) -> None:
        """Claim no more."""
        self.claiming, self.stopping = False, True
        self.wake.set()

    def pause_for(self, seconds: float) -> None:
        """Claim nothing for this many seconds; 0: claim again."""
        self.pause, self.pause_ends = seconds, self.loop.time() + seconds
        self.wake.set()  # to claim again, or to withdraw the outstanding hand-off request

    def outlasted_by(self, seconds: float) -> None:
        """Claimed jobs wait for this many seconds, or none are claimed. If that is longer than a heartbeat interval,
        send a heartbeat at once, so that `explain` shows the reason."""
        if seconds and seconds >= self.heartbeat_in:
            self.heartbeat_now.set()

    @property
    def is_done(self) -> bool:
        """Whether the worker stops, no job runs, no claimed job may still arrive, and no outcome is settled apart."""
        return self.stopping and not self.running and not self.claims_by_id and not self.apart

    @property
    def holds_nothing(self) -> bool:
        """Whether no job runs and every outcome is confirmed. A claim under way may still bring jobs."""
        return not self.running and not self.unconfirmed.runs()

    def claim_id(self) -> str:
        """Returns a new claim id."""
        return f"{self.name}#{next(self._claim_ids)}"

    def note_changed(self) -> None:
        """Request a heartbeat that saves the note of a job. May be called in any thread."""
        with suppress(RuntimeError):  # the loop is closed: no heartbeat saves notes any more
            self.loop.call_soon_threadsafe(self.heartbeat_now.set)

    # --- the life of a job

    def job_context(self) -> contextvars.Context:
        """The context variables with which the worker was started, so that a job sees none of the code that begins
        it."""
        return self._start_context.copy()

    def begin(self, run: RunningJob, work: Coroutine[Any, Any, object]) -> None:
        """Start the coroutine that runs this job and ends it."""
        record, id = run.record, run.record.job.id
        self.running[id] = run
        if record.version > 1 and (before := settled_before(record)):
            self._applied[id, before] = None
            if len(self._applied) > KEPT:
                del self._applied[next(iter(self._applied))]
        if run.lease and run.lease / 3 < self.heartbeat_in:
            self.heartbeat_now.set()
        # The name shows the job in listings of asyncio tasks; without one CPython 3.11 formats a number, which takes
        # 0.1 us.
        run.context = context = self.job_context()
        run.handle = new_task(work, loop=self.loop, name=id, context=context)

    def end(self, run: RunningJob, outcome: Outcome | None) -> None:
        """Release the slot and leave the outcome for the next request. No await, future or timer per job."""
        run.ended = True
        job_run, id = run.job_run, run.record.job.id
        if job_run.place is not None:
            job_run.place = ENDED
        if self.running.get(id) is run:
            del self.running[id]
        if not run.in_batch:
            self.slots.release()
        if run.uses is not None and self.resource_use is not None:
            self.resource_use.release(run.uses)
        if outcome is not None:
            self.unconfirmed.waiting.append((run, outcome if job_run.spent is None else job_run.with_spent(outcome)))
            if outcome.followups and any(new.queue == defaults.SYSTEM_QUEUE for new in outcome.followups):
                self.demand.system_job = True
        else:
            self.troubles.pop(job_run, None)
        self.wake.set()

    def settle_again(self, run: RunningJob, outcome: Outcome) -> None:
        """Settle this outcome with the next request."""
        self.unconfirmed.waiting.append((run, run.job_run.with_spent(outcome)))
        self.wake.set()

    def settle_apart(self, run: RunningJob, outcome: Outcome, work: Coroutine[Any, Any, None]) -> None:
        """Settle this outcome by `work`, apart from those of the dispatchers. Its lease is renewed meanwhile."""
        self.unconfirmed.sent[id(run)] = [(run, outcome)]
        task = new_task(work, loop=self.loop, name="", context=self.job_context())
        self.apart.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self.apart.discard(task)
            self.unconfirmed.sent.pop(id(run), None)
            self.wake.set()

        task.add_done_callback(done)

    def release_unbegun(self) -> None:
        """End the runs whose asyncio tasks were cancelled before their first step, because no line of them runs. From
        Python 3.12 on, tasks begin at once."""
        for run in list(self.running.values()):
            if run.handle is not None and run.handle.done() and not run.begun:
                self.end(run, judge.released(run.record))

    def was_applied(self, outcome: Outcome) -> bool:
        """Whether this worker has claimed the job again after this outcome: then only the answer was lost."""
        return (outcome.id, outcome.version) in self._applied
