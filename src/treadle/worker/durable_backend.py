"""Where durable code lives: what its steps, waits and marks need of the storage, through the worker they run in.

Without it each step would be a call of its own, and an outage of the storage a failure of the job.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from treadle.core.model import Hold, NewJob, Outcome, Record
from treadle.durable.steps import DurableRun
from treadle.errors import StorageError
from treadle.execution.context import NotRunning
from treadle.execution.runner import Threads, in_thread
from treadle.producer.batching import Batcher
from treadle.serialization.call_codec import Codec
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.parts import WorkerParts
from treadle.worker.state import RunningJob

T = TypeVar("T")
Fate = Literal["stored", "unsaved", "lost"]  # what became of the steps a run sent

LABEL = "steps"  # what an outage calls us
SAVED_AT_ONCE = 256  # runs whose steps ride on one call: bounds its size
PAUSE, LONGEST_PAUSE = 0.01, 1.0  # s before a step is sent again whose row another transaction has; doubled each time


class WorkerDurableBackend:
    """One for all runs of a worker. Steps that end at the same time are stored in one call."""

    def __init__(self, parts: WorkerParts, heartbeat: Heartbeat, threads: Callable[[], Threads]) -> None:
        self._state, self._storage, self._outage, self._app = parts.state, parts.storage, parts.outage, parts.app
        self._heartbeat, self._threads = heartbeat, threads
        self.loop, self.sizes, self.now = parts.state.loop, parts.app.sizes, parts.app.now
        self._saves: Batcher[RunningJob, Fate] = Batcher(self._store_steps, SAVED_AT_ONCE)

    def codec(self, task: str) -> Codec | None:
        found = self._app.tasks.get(task)
        return None if found is None else found.signature._codec

    async def save(self, run: DurableRun) -> None:
        """Store what this run remembers. Returns when it is stored; a run that is cut short, or whose job is another
        worker's by now, ends here."""
        pause = PAUSE
        while True:
            found = self._state.running.get(run.record.job.id)
            if found is None or found.context is not run:
                raise NotRunning(f"job {run.record.job.id} has ended: what it left running takes no more steps")
            if found.cut:
                raise asyncio.CancelledError
            [fate] = await self._saves([found])
            if fate == "stored":
                return
            if fate == "lost":
                raise asyncio.CancelledError
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _store_steps(self, runs: list[RunningJob]) -> Sequence[Fate]:
        by_lease: dict[float, dict[int, RunningJob]] = {}
        for run in runs:
            by_lease.setdefault(self._heartbeat.lease_of(run), {})[id(run)] = run  # two steps of a run are one hold
        fates: dict[int, Fate] = {}
        for lease, group in by_lease.items():
            holds = [_hold(run) for run in group.values()]
            presence = self._heartbeat.presence()
            held = await self._answer(functools.partial(self._storage.heartbeat, presence, holds, lease))
            for (number, run), hold in zip(group.items(), holds, strict=True):
                fates[number] = "lost" if hold.id in held.lost else "unsaved" if hold.id in held.unsaved else "stored"
                if fates[number] == "lost" and not run.ended:
                    self._heartbeat.lose(run)
                if fates[number] == "stored" and run.context.durable is not None:
                    run.context.durable.memo.saved(hold.memo)
        return [fates[id(run)] for run in runs]

    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]:
        return await self._answer(lambda: self._storage.get(ids))

    async def store(self, job: NewJob) -> Record:
        [row] = await self._answer(lambda: self._storage.enqueue([job]))
        return row

    async def settle(self, outcomes: Sequence[Outcome]) -> None:
        await self._answer(lambda: self._storage.settle(outcomes))

    async def call(self, run: DurableRun, function: Callable[[], Any]) -> Any:
        """A plain function in a thread. If the run is cut short meanwhile, its answer is remembered all the same."""
        here = contextvars.copy_context()
        return await in_thread(self._threads(), lambda: here.run(function), run.record.job.task, lambda: True)

    async def _answer(self, call: Callable[[], Awaitable[T]]) -> T:
        """Again and again while the storage is away: that is not the job's fault, and every call may be repeated."""
        failed = False
        try:
            while True:
                try:
                    return await call()
                except StorageError as error:
                    failed = True
                    await self._outage.failed(LABEL, error)
        finally:
            if failed:
                self._outage.answered(LABEL)  # or cut short, which is as much as this one will say


def _hold(run: RunningJob) -> Hold:
    durable = run.context.durable
    memo = () if durable is None else tuple(durable.memo.unsaved.items())
    return Hold(run.record.job.id, run.record.version, memo=memo, note=run.context.note)
