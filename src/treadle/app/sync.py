"""The same API for plain threads: a portal that runs the async code on an event loop and waits for the result."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from treadle.app.core import AppCore
from treadle.app.decorators import EnqueueOptions
from treadle.app.sync_views import (
    SyncAudit,
    SyncDead,
    SyncJobs,
    SyncLimits,
    SyncMetrics,
    SyncQueues,
    SyncSchedules,
    SyncWorkflows,
)
from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.concurrency.real_threads import new_event_loop, start, until
from treadle.core.errors import BadSession, EventLoopError, StorageUnavailable
from treadle.core.job import Continuation, Job, JobSpec
from treadle.producer import Joined
from treadle.resources import Overrides
from treadle.storage import at_once, is_async
from treadle.tasks.options import Seconds
from treadle.tasks.when import HasId, When

if TYPE_CHECKING:
    from treadle.testing.clock import HandClock
    from treadle.testing.given_storage import Given
    from treadle.testing.sync_app import SyncTesting

T = TypeVar("T")
W = TypeVar("W")

TRIES: Final = 500  # repetitions of a call whose event loop ends: over 10 s
AGAIN: Final = 0.02  # s between two repetitions


ENDED: Final = (
    "the event loop on which this app was open ended, or the app was closed, during a call of app.sync, which may have "
    "been carried out; repeat the call"
)


class Portal:
    """`app.sync`: each call runs on the app's event loop and returns its result.

    If the app is open on a running loop (a worker in this process, an async web server), the call runs on that loop, so
    a task in a thread may enqueue. Otherwise the portal starts a loop in a daemon thread and opens the app there.
    """

    def __init__(self, core: AppCore) -> None:
        self._core = core
        core.client.portal = self
        self._forget()
        core.when_forked.append(self._forget)
        # the calls of app.jobs, app.dead and the like, without await
        self.jobs, self.dead = SyncJobs(self, core.jobs), SyncDead(self, core.dead)
        self.queues, self.limits = SyncQueues(self, core.queues), SyncLimits(self, core.limits)
        self.workflows, self.schedules = SyncWorkflows(self, core.workflows), SyncSchedules(self, core.schedules)
        self.audit, self.metrics = SyncAudit(self, core.audit), SyncMetrics(self, core.metrics)

    def _forget(self) -> None:
        """Drop loop and thread, which do not exist in a forked child."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._join: Callable[[], None] | None = None

    @overload
    def enqueue(  # type: ignore[overload-overlap]  # one spec is the special case of many
        self, spec: Continuation[T, W], /, **options: Unpack[EnqueueOptions]
    ) -> Job[T, W]: ...
    @overload
    def enqueue(self, specs: Iterable[Continuation[T, W]], /, **options: Unpack[EnqueueOptions]) -> list[Job[T, W]]: ...
    @overload
    def enqueue(
        self, *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]], **options: Unpack[EnqueueOptions]
    ) -> list[Job[Any, Any]]: ...
    def enqueue(
        self,
        *specs: Any,
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
        within: Any = None,
    ) -> Any:
        """As `app.enqueue`. Returns one Job for one spec or flow, otherwise a list.

        With `within=` the jobs are stored on the given connection, in this thread and without an event loop.
        """
        flat, single = self._core.flatten(specs, after, when, wait_timeout)
        jobs = self._send(flat, within) if flat else []
        return jobs[0] if single else jobs

    def _send(self, specs: Sequence[JobSpec[Any, Any]], within: Any = None) -> list[Job[Any, Any]]:
        """Store specs, all or none: on the connection of the caller if there is one."""
        core = self._core
        if within is not None:
            _check_sync(within)
        joined = core.joined() if within is None else Joined(core.bound(within).enqueue)
        if joined is None:
            return self._again(lambda: _sent(core, specs))
        jobs = at_once(core.client.send_bound(specs, joined.write))
        if joined.follow is not None:
            joined.follow(jobs)
        return jobs

    def testing(
        self,
        clock: HandClock | None = None,
        *,
        storage: Given = "memory://",
        within: Literal["commit", "at_once"] = "commit",
        overrides: Overrides | None = None,
    ) -> SyncTesting:
        """`with app.sync.testing() as t:` is `app.testing()` for synchronous code: `t.drain()` runs plain functions in
        the calling thread."""
        from treadle.testing.sync_app import SyncTesting

        return SyncTesting(self._core, clock, storage, within, overrides, self.jobs)

    def result(self, job: Job[T, Any], timeout: float | timedelta | None = None) -> T:
        """As `job.result`."""
        return self._again(lambda: _result(job, timeout))

    # --- any call

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of this app and return its result: `app.sync.call(job.progress())`.

        Raises EventLoopError on the app's own event loop, and StorageUnavailable if that loop ends during the call.
        """
        try:
            return self._made(work)
        except LoopEnded:
            raise StorageUnavailable(ENDED) from None

    def _made(self, work: Coroutine[Any, Any, T]) -> T:
        """As `call`; raises LoopEnded if the loop ends during the call."""
        try:
            while True:
                try:
                    return self._call(work)
                except LoopEnded as ended:
                    if ended.begun:
                        raise
                    time.sleep(AGAIN)
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        ownership = self._core.life.ownership
        if ownership is not None and not ownership.is_over and ownership.loop is not self._loop:
            _check_not_on(ownership.loop)
            if ownership.takes_calls:
                return ownership.call(lambda: work).result()
        own = self._start()
        _check_not_on(own)
        return LoopCall(own, lambda: work, lambda: self._loop is own).result()  # a call is not begun after `close`

    def _again(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call that may be repeated. It is repeated if its loop ends or gives up the storage during the call."""
        life = self._core.life
        closes = life.closes
        for _ in range(TRIES):
            moves = life.moves
            try:
                return self._made(make())
            except (StorageUnavailable, LoopEnded) as error:
                has_moved = isinstance(error, LoopEnded) or life.moves != moves
                if not has_moved or life.closes != closes:
                    if isinstance(error, LoopEnded):
                        raise StorageUnavailable(ENDED) from None
                    raise
            time.sleep(AGAIN)
        return self.call(make())

    def close(self) -> None:
        """Close the app and end the portal's thread; calls that still wait there are cancelled. A second call does
        nothing."""
        with self._lock:
            loop, join = self._loop, self._join
        if loop is None or join is None:
            return
        _check_not_on(self._core.life.owner, loop)
        try:
            with suppress(LoopEnded):  # another thread has closed it first
                LoopCall(loop, self._core.close, lambda: self._loop is loop).result()
        finally:
            with self._lock:
                if self._loop is loop:
                    self._loop = self._join = self._core.life.own_loop = None
                    loop.call_soon_threadsafe(loop.stop)
            join()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                begun: list[asyncio.AbstractEventLoop | OSError] = []
                join = start(lambda: self._run(begun), "treadle-sync")
                until(lambda: bool(begun))
                [loop] = begun
                if isinstance(loop, OSError):
                    raise loop
                self._join, self._loop = join, loop
                self._core.life.own_loop = loop
            return self._loop

    def _run(self, begun: list[asyncio.AbstractEventLoop | OSError]) -> None:
        try:
            loop = new_event_loop()
        except OSError as error:  # too many open files
            begun.append(error)
            return
        begun.append(loop)
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            _end_tasks(loop)
            # This also closes the app, if a call that arrived during `close` has opened it again.
            loop.run_until_complete(loop.shutdown_asyncgens())
            _end_tasks(loop)  # tasks of calls that arrived meanwhile
        finally:
            loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def _check_not_on(*loops: asyncio.AbstractEventLoop | None) -> None:
    """Raise EventLoopError if one of these loops runs in this thread."""
    here = asyncio._get_running_loop()
    if here is not None and here in loops:
        raise EventLoopError(
            "app.sync was called on its own event loop, where it would wait for itself: await the method of the app"
        )


async def _result(job: Job[T, Any], timeout: float | timedelta | None) -> T:
    return await job.result(timeout)


def _check_sync(within: Any) -> None:
    """Raise BadSession for a session that belongs to an event loop."""
    if is_async(within):
        raise BadSession(
            f"a {type(within).__name__}", "it belongs to an event loop: use `await app.enqueue(...)` there"
        )


async def _sent(core: AppCore, specs: Sequence[JobSpec[Any, Any]]) -> list[Job[Any, Any]]:
    return await core.client.send(specs)
