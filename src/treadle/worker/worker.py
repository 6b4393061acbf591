"""The public `Worker`: its settings, start and stop. Each start makes a `WorkerSession`, which has its loops."""

from __future__ import annotations

import asyncio
import difflib
import gc
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.concurrency.spawn import answers_coroutine, started
from treadle.core import defaults, ids
from treadle.core.argument_names import spelled
from treadle.core.model import Record
from treadle.core.must_await import check_awaited
from treadle.errors import BadOption, StorageFull, StorageUnavailable, UnknownTask
from treadle.execution.runner import AnyTask
from treadle.policy.retry import DEFAULT, Retry, seconds
from treadle.storage.contract import Storage
from treadle.tasks.options import name_of
from treadle.worker.backlog import Backlog
from treadle.worker.claim_builder import Rooms, weights
from treadle.worker.executors.pools import Executors
from treadle.worker.leader import Role, role_of
from treadle.worker.os_signals import Signals
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import WorkerConfig, WorkerHost
from treadle.worker.redrive import Redrive
from treadle.worker.session import WorkerSession, tell
from treadle.workflow.plan import FLOW

log = logging.getLogger("treadle")

RECOVERY = Retry(base=0.1, max=10.0)
LISTENERS = 5.0  # s a stopping worker waits for async listeners
YOUNG = 5_000  # new objects between two runs of the garbage collector


def calm_collector() -> None:
    """Set up the garbage collector of a worker process: see `Worker.run`."""
    gc.collect()
    gc.freeze()
    if 0 < gc.get_threshold()[0] < YOUNG:  # unless the program has raised it, or disabled it
        gc.set_threshold(YOUNG)


@spelled
class Worker:
    """Runs the jobs of an app.

    queues       a list, or {name: weight} to give each its share of every claim; None: the queues of all its tasks
    concurrency  jobs that run at once
    tasks        only these tasks (or names); None: all tasks of the app
    accept       called with the row after the claim; if it returns false, the job is released (prefer `tasks`)
    throttle     async callable that returns seconds to pause before the next claim; `AIMD()` reacts to failures
    on_backlog   called with a Backlog when the worker has been behind for `backlog_after` s: once per episode, or again
                 every `backlog_every` s
    redrive      Redrive(...): reopen failed jobs while idle
    grace        seconds for running jobs to end when the worker stops
    lease        seconds that a lease lasts without a heartbeat; renewed every third of it
    poll         seconds between claims of an idle worker, in case a hint is lost
    role         "leader", "follower" or "auto": one worker of the fleet prunes, redrives and ticks schedules, see
                 `treadle.worker.leader`; None: this worker always does
    ordered      start jobs strictly in queue order: one claim at a time, not two that overlap
    recovery     delays between retries while the storage is away
    """

    def __init__(
        self,
        app: WorkerHost,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = defaults.CONCURRENCY,
        *,
        tasks: Iterable[str | AnyTask] | None = None,
        accept: Callable[[Record], Any] | None = None,
        throttle: Callable[[], Awaitable[Any]] | None = None,
        on_backlog: Callable[[Backlog], Any] | None = None,
        backlog_after: float | timedelta = defaults.BACKLOG_AFTER,
        backlog_every: float | timedelta | None = None,
        redrive: Redrive | None = None,
        grace: float | timedelta = defaults.GRACE,
        lease: float | timedelta = defaults.LEASE,
        poll: float | timedelta = defaults.POLL,
        recovery: Retry = RECOVERY,
        name: str | None = None,
        role: Role | None = None,
        ordered: bool = False,
    ) -> None:
        most: object = concurrency
        if isinstance(most, bool) or not isinstance(most, int) or concurrency < 1:
            raise BadOption("concurrency", f"expected 1 or more, found {concurrency!r}")
        self.app, self.concurrency = app, concurrency
        self.grace, self.lease, self.poll = seconds(grace, "grace"), seconds(lease, "lease"), seconds(poll, "poll")
        if not self.lease or not self.poll:
            raise BadOption("lease" if not self.lease else "poll", "expected more than 0 s")
        self.name = name_of(name, "name") if name else f"{platform.node()}:{os.getpid()}:{os.urandom(3).hex()}"
        self._asked_queues = weights(queues)
        self._asked_tasks = None if tasks is None else [task if isinstance(task, str) else task.name for task in tasks]
        rule: object = redrive
        if rule is not None and not isinstance(rule, Redrive):
            raise BadOption("redrive", f"expected Redrive(...), found {redrive!r}")
        self._setup = WorkerConfig(
            name=self.name,
            concurrency=concurrency,
            lease=self.lease,
            poll=self.poll,
            recovery=recovery.over(DEFAULT),
            role=role_of(role),
            ordered=ordered,
            accept=accept,
            throttle=throttle,
            on_backlog=on_backlog,
            backlog_after=seconds(backlog_after, "backlog_after"),
            backlog_every=None if backlog_every is None else seconds(backlog_every, "backlog_every"),
            redrive=redrive,
        )
        if not self._setup.backlog_after:
            raise BadOption("backlog_after", "expected more than 0 s")
        self.patient = True  # whether items of a batch wait for others; False while a test drains
        self.pools = Executors(self.name, concurrency)
        self._session: WorkerSession | None = None
        self._stopping: asyncio.Task[None] | None = None

    # --- start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the app if it is not open, and begin to claim.

        If the storage cannot be reached or is full, logs that once and retries until it works. Raises UnknownTask, and
        the errors of opening that waiting cannot fix (BadUrl, SchemaTooNew, NotADatabase, StorageDenied).
        """
        if self._session is not None:
            raise BadOption("worker", "it is already running")
        for name in self._asked_tasks or ():
            if name not in self.app.tasks:
                raise UnknownTask(name, tuple(self.app.tasks))
        outage = StorageOutage(self.name, self._setup.recovery, self.app.chance, self._tell)
        storage = await self._open(outage)
        try:
            self._session = WorkerSession(
                self.app, self._setup, self.queues(), self.tasks, self.pools, storage, outage, self.patient
            )
            self._session.start()
        except BaseException:
            await self.app.release()
            raise
        self._warn_of_queues()
        self._tell("worker.started")

    def _warn_of_queues(self) -> None:
        """Log a queue that no task of the app uses and that resembles one in use: a mistyped name claims nothing."""
        known = {queue for task in self.app.tasks.values() if (queue := getattr(task, "queue", None))}
        for queue in self._asked_queues or ():
            close = difflib.get_close_matches(queue, known, 1)
            if queue not in known and close:
                log.warning(
                    "worker %s: no task of this app uses the queue %r; did you mean %r?", self.name, queue, close[0]
                )

    async def _open(self, outage: StorageOutage) -> Storage:
        while True:
            try:
                storage = await self._opened()
            except (StorageUnavailable, StorageFull) as error:
                await outage.failed("open", error)
            else:
                outage.answered("open")
                return storage

    async def _opened(self) -> Storage:
        """Open the storage, and store the limits and schedules that the app declares."""
        storage = await self.app.open()
        try:
            self._check_queues(storage.capabilities.queues)
            if self.queues():
                await self.app.prepare()
        except BaseException:
            await self.app.release()
            raise
        return storage

    def _check_queues(self, only: tuple[str, ...]) -> None:
        """Raise BadOption if the token of this process, which is bound to the queues `only`, forbids a queue or the
        role."""
        outside = [queue for queue in self.queues() if only and queue not in only]
        if outside:
            raise BadOption(
                "queues",
                f"the token is bound to {', '.join(only)}, but this worker claims from {', '.join(outside)}; give "
                f"queues={list(only)}, or use a token for those queues",
            )
        if only and self._setup.role == "leader":
            raise BadOption("role", f"the token is bound to {', '.join(only)}, but a leader works for every queue")

    @answers_coroutine
    def run(self) -> Coroutine[Any, Any, None]:
        """Run until SIGTERM or SIGINT: the first signal stops with `grace`, the second at once.

        Takes over the garbage collector of the process. Objects that exist now are exempt (`gc.freeze`), because
        collecting them blocks the event loop for 7-14 ms each time. New objects are collected once every 5,000
        (`gc.set_threshold`), because a job leaves no cycles: this saves 1 us of 6.7 us a job.
        """
        check_awaited("worker.run()", "asyncio.run(worker.run())")
        return self._run()

    async def _run(self) -> None:
        calm_collector()
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            asked.set()
            if signals > 1 and self._session is not None:
                self._session.hurry.set()

        with Signals(loop, on_signal):
            starting, stopping = asyncio.create_task(self.start()), asyncio.create_task(asked.wait())
            try:
                await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():  # it still waits for the storage
                    starting.cancel()
                    await asyncio.wait([starting])
                if not starting.cancelled():
                    starting.result()
                    await asked.wait()
                    await self.stop()
            finally:
                starting.cancel()
                stopping.cancel()
                if self._session is not None:  # it was cancelled
                    await self.stop(0)

    async def stop(self, grace: float | timedelta | None = None) -> None:
        """Claim no more, request the running functions to stop, wait `grace` seconds, then cancel them and release
        their jobs, uncounted. A second call waits for the first.

        If this call is cancelled, for example by a timeout, it cancels the functions at once, and returns when they
        have ended or a few seconds have passed. If a job of this worker calls it, it returns at once, and the worker
        stops when that job has ended. May be called on any event loop.
        """
        session = self._session
        if session is None:
            return
        if session.loop is not asyncio.get_running_loop():
            with suppress(LoopEnded):
                await LoopCall(session.loop, lambda: self.stop(grace)).wait()
            return
        if self._stopping is None:
            wait = self.grace if grace is None else seconds(grace, "grace")
            self._tell("worker.stopping")
            session.claim_no_more()
            self._stopping = started(self._stop(session, wait), context=Context())
        stopping = self._stopping
        job = ids.running.get(None)
        if job is not None and any(run.job_run is job for run in session.state.running.values()):
            return
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            session.hurry.set()
            while not stopping.done():
                await asyncio.wait([stopping])
            raise

    async def _stop(self, session: WorkerSession, grace: float) -> None:
        try:
            await session.stop(grace)
        finally:
            self._session = self._stopping = None
            try:
                await self.pools.close()
                self._tell("worker.stopped")
                await self.app.emitter.settle(LISTENERS)
            finally:
                await self.app.release()

    @property
    def running(self) -> Sequence[Record]:
        """The jobs that run here now."""
        return [] if self._session is None else [run.record for run in self._session.state.running.values()]

    async def run_ids(self, ids: Sequence[str]) -> None:
        """Claim and start those of these jobs that may start now, as far as slots are free."""
        if self._session is not None:
            await self._session.run_ids(ids)

    # --- used by the session

    def _tell(self, name: str, error: BaseException | None = None) -> None:
        tell(self.app.emitter, self.name, name, error)

    def queues(self) -> dict[str, int]:
        if self._asked_queues is not None:
            return self._asked_queues
        asked = self._asked_tasks
        tasks = [task for name, task in self.app.tasks.items() if asked is None or name in asked]
        return dict.fromkeys((task.queue for task in tasks), 1) or {defaults.QUEUE: 1}

    def tasks(self) -> Rooms:
        names = self.app.tasks if self._asked_tasks is None else self._asked_tasks
        found: Rooms = {n: (None, self.app.tasks[n].lease) for n in names}
        found[FLOW] = None, None  # the roots of compositions: any worker of their queue ends them
        return found | {
            each.name: (None, None) for each in self.app.system_tasks.values() if each.serves in (None, *names)
        }
