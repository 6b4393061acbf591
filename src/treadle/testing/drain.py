"""Run everything that can run now, one job after the other, and return when nothing is left.

`drain` runs a real worker, so a drained test exercises the production code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from treadle.core.clock import monotonic
from treadle.core.errors import StorageUnavailable, TreadleError
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, Outcome, Presence, Record, Settled
from treadle.execution.middleware import Middleware, Run
from treadle.policy import judge
from treadle.policy.retry import Defer
from treadle.storage import StorageProxy
from treadle.storage.contract import Storage
from treadle.worker import Runs, WorkerConfig, WorkerCore, task_names, worker_name

if TYPE_CHECKING:
    from treadle.app.core import AnyApp, AppCore
    from treadle.execution.context import Context
    from treadle.tasks.task import AnyTask

LONG = 86_400.0  # seconds that inline jobs, which run next to the drain, have to end
PATIENCE = 10.0  # seconds a storage may be unavailable; equals the wait for a SQLite lock
AWAY = (
    "the storage did not respond to the drain; if it is a SQLite file, an open transaction may have locked it: commit "
    "that before the drain"
)


class Endless(TreadleError, AssertionError):
    """More runs than the limit: jobs seem to create jobs without end. The jobs that did not run stay queued."""

    def __init__(self, limit: int, last: Record, call: str = "drain") -> None:
        self.limit, self.last = limit, last
        super().__init__(
            f"{limit:,} jobs were run and more are queued, next {last.job.task} {last.job.id}; "
            f"if that is right, give {call} a higher limit="
        )


async def drain(
    app: AnyApp,
    *,
    tasks: Iterable[str | AnyTask] | None = None,
    limit: int = 10_000,
    raise_errors: bool = False,
    concurrency: int = 1,
) -> int:
    """Run the due jobs of `app`, and their follow-up jobs, until every queue is empty and nothing runs.

    Returns the number of runs. Jobs due later stay, including retries with a delay; nothing sleeps. Jobs run one at a
    time in queue order unless `concurrency` is higher: a job that waits for another's result needs 2. If the app has an
    outbox, its committed jobs are delivered first.

    tasks         run only these
    raise_errors  raise the first exception of a task, whatever its verdict; the jobs behind it stay queued
    Raises Endless after `limit` runs, and StorageUnavailable if the storage does not answer for 10 seconds.
    """
    return await drain_core(
        app._core, tasks=tasks, limit=limit, raise_errors=raise_errors, concurrency=concurrency, threads=None
    )


async def drain_core(
    core: AppCore,
    *,
    tasks: Iterable[str | AnyTask] | None,
    limit: int,
    raise_errors: bool,
    concurrency: int,
    threads: Runs | None,
) -> int:
    """See `drain`.

    threads  where plain functions run; None: in threads of the worker
    """
    storage, life = await core.open(), None
    try:
        life = await core.resources.enter()  # open for all workers of this drain
        await _relayed(core)
        watched = _Watched(storage, limit)
        host = _Host(core, watched, raise_errors)
        queues = await _queues(core, storage)
        again = bool(queues)  # a worker that serves no queue makes no claim, so `rested` would never be set
        chosen = task_names(tasks)
        while again:
            ran, known = watched.ran, queues
            config = WorkerConfig(
                name=worker_name(),
                queues=dict.fromkeys(sorted(queues), 1),
                concurrency=concurrency,
                tasks=chosen,
                relay=False,
                labels=None,
                resources=None,
            )
            await _work(WorkerCore(cast("AppCore", host), config, patient=False), watched, threads)
            again = await _end_inline(core) or watched.ran > ran
            again = await _relayed(core) or again
            queues = queues | await _queues(core, storage)
            again = again or queues > known
            if host.error is not None:
                raise host.error
            if watched.exceeded is not None:
                raise Endless(limit, watched.exceeded)
        return watched.ran
    finally:
        try:
            if life is not None:
                await core.resources.leave(life)
        finally:
            await core.release()


async def _work(worker: WorkerCore, watched: _Watched, threads: Runs | None) -> None:
    """Run a worker until nothing is left to do now. Raises the error of a storage that did not answer."""
    if threads is not None:
        worker.pools.lend(threads)
    watched.attend(worker)
    await worker.start()
    try:
        await watched.rested.wait()
        if watched.away is not None and worker.session is not None:
            worker.session.hurry.set()  # otherwise it waits for the storage for its whole grace period
    finally:
        await worker.stop()
    if watched.away is not None:
        watched.away.add_note(AWAY)
        raise watched.away


async def _queues(core: AppCore, storage: Storage) -> set[str]:
    """The queues that may hold jobs: a job can be sent to a queue that no task names."""
    counts = (await storage.stats()).counts
    return {task.queue for task in core.tasks.values()} | {row.queue for row in counts if not row.state.final}


async def _relayed(core: AppCore) -> bool:
    """Deliver the committed jobs of the app's outbox. Returns whether there were any."""
    relay = core.relay
    return relay is not None and await relay.everything() > 0


async def _end_inline(core: AppCore) -> bool:
    """End the worker of jobs sent with `inline=True`. Returns whether there was one."""
    stopped = False
    while await core.inline.stop(LONG):
        stopped = True
    return stopped


class _Host:
    """The app as the worker sees it, with a watched storage and, optionally, errors caught."""

    def __init__(self, core: AppCore, storage: _Watched, catch: bool) -> None:
        self._core, self._storage = core, storage
        self.layers: list[Middleware] = [_Catch(self), *core.layers] if catch else core.layers
        self.on_error: judge.OnError | None = self._asked if catch else core.on_error
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    async def open(self) -> Storage:
        await self._core.open()
        return self._storage

    def caught(self, error: BaseException) -> None:
        """Keep the first error, which ends the drain: no more jobs are claimed."""
        if self.error is None and not isinstance(error, Defer):
            self.error = error
            self._storage.shut = True

    def _asked(self, error: BaseException, failure: judge.Failure) -> judge.Verdict:
        self.caught(error)  # undecodable arguments, results that cannot be stored, timeouts
        return self._core.on_error(error, failure) if self._core.on_error is not None else None


class _Catch(Middleware):
    """The outermost middleware: sees the same exceptions as the runner."""

    def __init__(self, host: _Host) -> None:
        self._host = host

    async def run(self, context: Context, proceed: Run) -> Any:
        try:
            return await proceed()
        except Exception as error:
            self._host.caught(error)
            raise


class _Watched(StorageProxy):
    """A storage that detects when its only worker finds nothing more to do.

    An empty claim proves an empty queue only if no other call touched rows meanwhile: a claim skips rows that another
    call has locked, such as a heartbeat that advances due rows. Such a claim is repeated.
    """

    def __init__(self, storage: Storage, limit: int) -> None:
        super().__init__(storage)
        self._limit = limit
        self.ran = 0
        self.shut = False
        self.exceeded: Record | None = None
        self.away: StorageUnavailable | None = None  # set after PATIENCE seconds without an answer
        self._failing: float | None = None  # when the first of the unanswered calls began
        self.rested = asyncio.Event()
        self._worker: WorkerCore | None = None
        self._claiming = self._touching = 0  # calls in flight: claims; others that may move rows
        self._touched = 0  # finished calls that may have moved rows
        self._still = asyncio.Event()  # only claims are in flight
        self._still.set()
        self._unsettled: set[tuple[str, int]] = set()  # outcomes whose settle failed and will be repeated

    def attend(self, worker: WorkerCore) -> None:
        self._worker = worker
        self._unsettled.clear()
        self.rested.clear()

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        keys = {(outcome.id, outcome.version) for outcome in outcomes}
        self._unsettled |= keys
        with self._moving(), self._answered():
            settled = await self.storage.settle(outcomes)
        self._unsettled -= keys
        return settled

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        with self._moving(), self._answered():
            return await self.storage.heartbeat(worker, renewals, lease)

    async def prune(self, limit: int) -> int:
        with self._moving(), self._answered():
            return await self.storage.prune(limit)

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        settled = await self.settle(outcomes) if outcomes else []
        return settled, await self.claim(ask)

    async def claim(self, ask: Claim) -> Claimed:
        while True:
            alone, before = not self._touching, self._touched
            claimed = await self._claim(ask)
            if claimed.records or not self._quiet():
                return claimed
            if self.shut or (alone and before == self._touched and not self._touching):
                self.rested.set()
                return claimed
            await self._still.wait()
            if self.rested.is_set():
                return claimed

    async def _claim(self, ask: Claim) -> Claimed:
        """Claim, and release the records beyond the limit."""
        self._claiming += 1
        try:
            with self._answered():
                claimed = Claimed() if self.shut else await self.storage.claim(ask)
        finally:
            self._claiming -= 1
        self._touched += bool(claimed.records)
        taken = claimed.records[: self._limit - self.ran]
        if len(taken) < len(claimed.records):
            self.exceeded = claimed.records[len(taken)]
            self.shut = True
            await self.storage.settle([judge.released(record) for record in claimed.records[len(taken) :]])
        self.ran += len(taken)
        return Claimed(taken, claimed.next_in)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self._touching += 1
        self._still.clear()
        try:
            yield
        finally:
            self._touching -= 1
            self._touched += 1
            if not self._touching:
                self._still.set()

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Guard a call. After PATIENCE seconds without an answer the drain ends and further calls raise."""
        if self.away is not None:
            raise self.away
        begun = monotonic()
        try:
            yield
        except StorageUnavailable as error:
            self._failing = begun if self._failing is None else self._failing
            if monotonic() - self._failing >= PATIENCE:
                self.away = error
                self.rested.set()
            raise
        else:
            self._failing = None

    def _quiet(self) -> bool:
        """Whether no job runs, no outcome is unsettled, and no other claim is in flight."""
        worker = self._worker
        waiting = worker is not None and worker.session is not None and worker.session.state.unconfirmed.waiting
        return not (self._claiming or self._unsettled or waiting or (worker is not None and worker.running))
