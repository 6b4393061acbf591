"""Run everything that can run now, one job after the other, and come back when nothing is left.

Without it a test would start a worker, wait for it somehow, and be slow or flaky. It is a real worker that runs here:
what a drained test shows is what production does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from treadle.core.clock import monotonic
from treadle.core.model import Claim, Claimed, Held, Hold, Outcome, Presence, Record, Settled
from treadle.errors import StorageUnavailable, TreadleError
from treadle.execution.middleware import Middleware, Run
from treadle.policy import judge
from treadle.policy.retry import Defer
from treadle.storage.contract import Storage
from treadle.worker import Worker
from treadle.worker.executors.threads import Runs
from treadle.worker.parts import WorkerHost

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.execution.context import Context
    from treadle.execution.runner import AnyTask

LONG = 86_400.0  # s that inline jobs, which run beside the drain, get to end
PATIENCE = 10.0  # s for which a storage may be away; a call waits so long for a lock of SQLite's
AWAY = (
    "the drain has no answer from the storage; where the storage is a SQLite file, a transaction that is still open "
    "may lock it: commit it before the drain"
)


class Endless(TreadleError, AssertionError):
    """More runs than the limit: jobs seem to bring forth jobs without end. What was not run is still in line."""

    def __init__(self, limit: int, last: Record) -> None:
        self.limit, self.last = limit, last
        super().__init__(
            f"{limit:,} jobs were run and there are still more, next {last.job.task} {last.job.id}; "
            "if that is right, give drain a higher limit="
        )


async def drain(
    app: App,
    *,
    tasks: Iterable[str | AnyTask] | None = None,
    limit: int = 10_000,
    raise_errors: bool = False,
    concurrency: int = 1,
    threads: Runs | None = None,
) -> int:
    """Run the jobs of `app` that are due, and those they bring forth, until no line has any and nothing runs.

    Answers how many runs that took. What is due later stays, a retry with a delay too; nothing sleeps. One job at a
    time, in line order, unless `concurrency` says otherwise: a job that waits for another's result needs 2.

    tasks         only these
    raise_errors  raise the first exception of a task, however it was judged; the jobs behind it stay in line
    threads       where plain functions run; None: in threads of the worker
    Raises Endless after `limit` runs, and StorageUnavailable where the storage does not answer for 10 seconds.
    """
    storage = await app.open()
    try:
        watched = _Watched(storage, limit)
        host = _Host(app, watched, raise_errors)
        queues = await _queues(app, storage)
        again = bool(queues)  # a worker that serves no queue makes no claim, so it would never come to rest
        chosen = None if tasks is None else list(tasks)
        while again:
            ran, known = watched.ran, queues
            worker = Worker(cast("WorkerHost", host), sorted(queues), concurrency, tasks=chosen)
            worker.patient = False
            if threads is not None:
                worker.pools.lend(threads)
            watched.attend(worker)
            async with worker:
                await watched.rested.wait()
                if watched.away is not None and worker._session is not None:
                    worker._session.hurry.set()  # it would wait for the storage for its whole grace
            if watched.away is not None:
                watched.away.add_note(AWAY)
                raise watched.away
            again = await _end_inline(app) or watched.ran > ran
            queues = queues | await _queues(app, storage)
            again = again or queues > known
            if host.error is not None:
                raise host.error
            if watched.exceeded is not None:
                raise Endless(limit, watched.exceeded)
        return watched.ran
    finally:
        await app.release()


async def _queues(app: App, storage: Storage) -> set[str]:
    """Where jobs may be: a job can be sent to a queue that no task names."""
    counts = (await storage.stats()).counts
    return {task.queue for task in app.tasks.values()} | {each.queue for each in counts if not each.state.final}


async def _end_inline(app: App) -> bool:
    """Jobs sent with `inline=True` run beside us in a worker of their own; whether there was one."""
    found = False
    while await app._inline.stop(LONG):
        found = True
    return found


class _Host:
    """The app as the worker sees it: its storage watched, and errors caught on their way."""

    def __init__(self, app: App, storage: _Watched, catch: bool) -> None:
        self._app, self._storage = app, storage
        self.layers: list[Middleware] = [_Catch(self), *app.layers] if catch else app.layers
        self.on_error: judge.OnError | None = self._asked if catch else app.on_error
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def open(self) -> Storage:
        await self._app.open()
        return cast("Storage", self._storage)

    def caught(self, error: BaseException) -> None:
        """The first error ends the drain; nothing more is claimed."""
        if self.error is None and not isinstance(error, Defer):
            self.error = error
            self._storage.shut = True

    def _asked(self, error: BaseException, failure: judge.Failure) -> judge.Verdict:
        self.caught(error)  # arguments that cannot be read, results that cannot be stored, timeouts
        return self._app.on_error(error, failure) if self._app.on_error is not None else None


class _Catch(Middleware):
    """Outside of all other middleware: sees what the runner sees."""

    def __init__(self, host: _Host) -> None:
        self._host = host

    async def run(self, context: Context, proceed: Run) -> Any:
        try:
            return await proceed()
        except Exception as error:
            self._host.caught(error)
            raise


class _Watched:
    """A storage that notices when its only worker finds nothing more to do.

    An empty answer proves an empty line only if nothing else touched rows meanwhile: a claim passes over what another
    call has locked, such as a heartbeat that moves what is due into the line. Such a claim is made once more.
    """

    def __init__(self, storage: Storage, limit: int) -> None:
        self._storage, self._limit = storage, limit
        self.ran = 0
        self.shut = False
        self.exceeded: Record | None = None
        self.away: StorageUnavailable | None = None  # it was for longer than a test should wait
        self._failing: float | None = None  # since when no call was answered
        self.rested = asyncio.Event()
        self._worker: Worker | None = None
        self._claiming = self._touching = 0  # calls under way: claims; others that may move rows
        self._touched = 0  # calls that have moved rows, or may have
        self._still = asyncio.Event()  # nothing but claims is under way
        self._still.set()
        self._unsettled: set[tuple[str, int]] = set()  # outcomes whose settling failed, to be repeated

    def attend(self, worker: Worker) -> None:
        self._worker = worker
        self._unsettled.clear()
        self.rested.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        keys = {(each.id, each.version) for each in outcomes}
        self._unsettled |= keys
        with self._moving(), self._answered():
            settled = await self._storage.settle(outcomes)
        self._unsettled -= keys
        return settled

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        with self._moving(), self._answered():
            return await self._storage.heartbeat(worker, holds, lease)

    async def prune(self, limit: int) -> int:
        with self._moving(), self._answered():
            return await self._storage.prune(limit)

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
        """As many as the limit leaves; those beyond it go back."""
        self._claiming += 1
        try:
            with self._answered():
                claimed = Claimed() if self.shut else await self._storage.claim(ask)
        finally:
            self._claiming -= 1
        self._touched += bool(claimed.records)
        taken = claimed.records[: self._limit - self.ran]
        if len(taken) < len(claimed.records):
            self.exceeded = claimed.records[len(taken)]
            self.shut = True
            await self._storage.settle([judge.handed_back(record) for record in claimed.records[len(taken) :]])
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
        """A call. When none was answered for too long, the drain is over, and no further call is made."""
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
        """Whether no job runs, none is to be settled, and no other claim may still bring one: the last one decides."""
        worker = self._worker
        waiting = worker is not None and worker._session is not None and worker._session.state.outcomes
        return not (self._claiming or self._unsettled or waiting or (worker is not None and worker.running))
