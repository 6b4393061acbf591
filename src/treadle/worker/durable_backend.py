"""Stores the steps, waits and signals of durable code through the worker that runs it.

Steps that end at the same time share one call, and an outage of the storage is waited out.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, TypeVar
from weakref import WeakValueDictionary

from treadle.core.errors import NotRunning, StorageError
from treadle.core.job import JobSpec, inheriting
from treadle.core.model import OURS, LeaseRenewal, NewJob, Outcome, Record, Settled
from treadle.durable import Durable, DurableRun
from treadle.execution import in_thread
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun
from treadle.execution.middleware import around_step, overrides, prepared
from treadle.policy import guilt
from treadle.policy.parts import is_part
from treadle.policy.retry import read_policy
from treadle.producer import Batcher
from treadle.serialization.call_codec import Codec
from treadle.storage import keeps_slots, whole, whole_row
from treadle.storage.row_rules import costs
from treadle.worker.parts import WorkerParts
from treadle.worker.running_job import RunningJob
from treadle.workflow import cancel_subtree, decoded, specs_of
from treadle.workflow.plan import adopted

T = TypeVar("T")
Fate = Literal["stored", "unsaved", "lost"]  # the result for the steps that one run sent

_NO_LAYERS: Final = nullcontext()

LABEL = "steps"  # the name of these calls in StorageOutage
SAVED_AT_ONCE = 256  # runs whose steps go with one call: bounds its size
READ_AT_ONCE = 500  # rows that one call reads: bounds the time that it takes of the storage
PAUSE, LONGEST_PAUSE = 0.01, 1.0  # s before steps are sent again because their row was locked; doubled each time


class WorkerDurableBackend:
    """One for all runs of a worker."""

    def __init__(self, parts: WorkerParts) -> None:
        self._state, self._storage, self._outage, self._app = parts.state, parts.storage, parts.outage, parts.app
        self._heartbeat, self._threads = parts.heartbeat, parts.pools.threads
        self.loop, self.sizes, self.now = parts.state.loop, parts.app.sizes, parts.app.now
        self.random, self.offload = parts.app.random, parts.storage.capabilities.offload
        self._layers, self._sending = overrides(parts.app.layers, "step"), overrides(parts.app.layers, "enqueue")
        self._joining: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reads: Batcher[str, Record | None] = Batcher(self._get, READ_AT_ONCE)
        self._saves: Batcher[RunningJob, Fate] = Batcher(self._store_steps, SAVED_AT_ONCE)

    def codec(self, task: str) -> Codec | None:
        core = self._app.tasks.get(task)
        return None if core is None else core.signature._codec

    def arguments(self, record: Record, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """The payload of a further round of this job."""
        later = bool(read_policy(record.job.retry).pass_result)
        return self._app.tasks[record.job.task].signature.encode_call(args, kwargs, first_later=later)

    def is_cancelled(self, run: DurableRun) -> bool:
        """Whether the run was cancelled, or has ended."""
        running = self._state.running.get(run.record.job.id)
        return running is None or running.job_run is not run or running.cancelled

    def keeps(self, run: DurableRun) -> bool:
        """Whether this run may keep its slot for a short wait. A test's clock is moved by hand, so nothing is short."""
        return not (self._state.stopping or self._app.in_test or self.is_cancelled(run))

    def check(self, run: DurableRun) -> RunningJob:
        """The run, which may store steps. Raises CancelledError if it was cancelled or its job was lost, and NotRunning
        after its end."""
        running = self._state.running.get(run.record.job.id)
        if running is None or running.job_run is not run:
            raise NotRunning(f"job {run.record.job.id} has ended: a task that it left running cannot take more steps")
        if running.cancelled:
            raise asyncio.CancelledError
        return running

    async def save(self, run: DurableRun) -> None:
        """Store the new checkpoints of this run, and return when they are stored. Raises as `check` does."""
        pause = PAUSE
        while True:
            [fate] = await self._saves([self.check(run)])
            if fate == "stored":
                return
            if fate == "lost":
                raise asyncio.CancelledError
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _store_steps(self, runs: list[RunningJob]) -> Sequence[Fate]:
        by_lease: dict[float, dict[int, RunningJob]] = {}
        for run in runs:
            by_lease.setdefault(self._heartbeat.lease_of(run), {})[id(run)] = run  # two steps of a run: one renewal
        fates: dict[int, Fate] = {}
        for lease, group in by_lease.items():
            renewals = [_renewal(run) for run in group.values()]
            answer = await self._repeat(
                functools.partial(self._heartbeat.send, renewals, lease),
                functools.partial(self._is_over, group.values()),
            )
            for (key, run), renewal in zip(group.items(), renewals, strict=True):
                fates[key] = (
                    "lost" if renewal.id in answer.lost else "unsaved" if renewal.id in answer.unsaved else "stored"
                )
                if fates[key] == "lost" and not run.ended:
                    self._heartbeat.lose(run)
                if fates[key] == "stored" and run.job_run.durable is not None:
                    run.job_run.durable.checkpoints.saved(renewal.checkpoints)
        return [fates[id(run)] for run in runs]

    def _is_over(self, runs: Collection[RunningJob]) -> bool:
        """Whether the worker stops, and none of these runs waits for its steps any more."""
        return self._state.stopping and all(run.ended for run in runs)

    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]:
        """These rows with their results. Reads of several tasks and runs share a call."""
        return await self._reads(ids)

    async def _get(self, ids: list[str]) -> Sequence[Record | None]:
        async def read() -> Sequence[Record | None]:
            rows = await whole(self._storage, await self._storage.get(ids), "payload", "result")
            return [row if row is None else await self._with_published(row) for row in rows]

        return await self._repeat(read)

    async def _with_published(self, row: Record) -> Record:
        """With its large checkpoints, if it makes a try of a step: its job reads what that has published."""
        return await whole_row(self._storage, row) if row.checkpoints and is_part(row.job) else row

    async def store(self, job: NewJob) -> Record:
        [row] = await self.store_all([job])
        return row

    async def store_all(self, jobs: Sequence[NewJob]) -> Sequence[Record]:
        return await self._repeat(lambda: self._storage.enqueue(jobs))

    def specs(self, record: Record, jobs: Iterable[Any], where: str) -> list[JobSpec[Any, Any]]:
        return specs_of(self._app.tasks[record.job.task].factory, jobs, where)

    async def adopted(self, run: DurableRun, jobs: Sequence[NewJob], time_left: float | None) -> tuple[NewJob, ...]:
        """These jobs as children of the run's job, with the headers that it gives to them, and after the middleware."""
        headers = run.child_headers if isinstance(run, JobRun) else None
        if headers:
            jobs = [inheriting(new, headers) for new in jobs]
        if self._sending:
            jobs = await prepared(self._sending, jobs, self._app.client)
        return tuple([adopted(new, run.record.job, time_left) for new in jobs])

    def decoded(self, of: Any, text: str) -> Any:
        return decoded(of, self._app.tasks, text)

    async def cancel(self, record: Record, ids: Sequence[str]) -> None:
        """Cancel these children of the job, with their own children."""
        rows = [row for row in await self.get(ids) if row is not None and row.job.parent == record.job.id]
        how = "has ended before it" if record.state.final else "waits for it no longer"
        error = f"job {record.job.id} {how}"
        await self._repeat(lambda: cancel_subtree(self._storage, rows, error))

    async def kept_limits(self, job: NewJob, around: Iterable[str]) -> frozenset[str]:
        """The limits of which this job keeps the slot until it has ended, or a try inside of which it runs: `around`
        are the limits of those."""
        uses = await self._repeat(lambda: self._storage.limits(use=False))
        rules = {use.rule.name: use.rule for use in uses}
        return frozenset([key for key in (*dict(costs(job)), *around) if keeps_slots(rules, key)])

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Settled]:
        return await self._repeat(lambda: self._storage.settle(outcomes))

    def joining(self, name: str) -> asyncio.Lock:
        """The jobs of this worker ask for a lock one after the other: each changes the row of the lock."""
        return self._joining.setdefault(name, asyncio.Lock())

    async def call(self, run: DurableRun, function: Callable[[], Any]) -> Any:
        """Run a plain function in a thread. Its result becomes a checkpoint even if the run is cancelled meanwhile."""
        here = contextvars.copy_context()
        return await in_thread(self._threads(), lambda: here.run(function), run.record.job.task, lambda: True)

    def around_step(self, run: DurableRun, name: str) -> AbstractContextManager[object]:
        """The middleware around the function of a step."""
        if not self._layers or not isinstance(run, JobRun):
            return _NO_LAYERS
        return around_step(self._layers, Context(run), name)

    async def _repeat(self, call: Callable[[], Awaitable[T]], is_over: Callable[[], bool] = lambda: False) -> T:
        """Repeat a call while the storage is away, until `is_over`; every call here may be repeated."""
        failed = False
        try:
            while True:
                try:
                    return await call()
                except StorageError as error:
                    failed = True
                    if not is_over():
                        await self._outage.failed(LABEL, error)
                    if is_over():
                        raise
        finally:
            if failed:
                self._outage.answered(LABEL)  # or cancelled: this caller reports nothing further


def _renewal(run: RunningJob) -> LeaseRenewal:
    durable = run.job_run.durable
    checkpoints = () if durable is None else tuple(durable.checkpoints.unsaved.items())
    if durable is not None and run.record.lost and any(_is_progress(durable, name) for name, _ in checkpoints):
        note = guilt.progress_note(run.record)
        run.record, checkpoints = guilt.with_note(run.record, note), (*checkpoints, *note)
    return LeaseRenewal(run.record.job.id, run.record.version, checkpoints=checkpoints, note=run.job_run.note)


def _is_progress(durable: Durable, name: str) -> bool:
    """Whether this is the entry of a step that has its outcome."""
    return not name.startswith(OURS) and durable.checkpoints.is_over(name)
