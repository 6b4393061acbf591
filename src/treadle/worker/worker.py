"""The worker: its settings, how it starts and how it stops.

Without it there would be loops (running.py), and no one word for all of them.
"""

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
from treadle.storage.contract import Storage, confined
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
YOUNG = 5_000  # new objects between two looks of the garbage collector


def calm_collector() -> None:
    """The garbage collector of a process that is a worker's: see `Worker.run`."""
    gc.collect()
    gc.freeze()
    if 0 < gc.get_threshold()[0] < YOUNG:  # unless somebody has set it, or switched it off
        gc.set_threshold(YOUNG)


@spelled
class Worker:
    """Runs the jobs of an app.

    queues       None: those of all its tasks; a list; or {name: weight}, each getting its share of every claim
    concurrency  jobs at once
    tasks        only these tasks (or names); None: all the app has
    accept       called with the row after the claim; false hands the job back, uncounted (prefer `tasks`)
    throttle     async callable answering seconds to pause before claiming on; `AIMD()` is one that listens to failures
    on_backlog   told a Backlog when the worker has been behind for `backlog_after` s: once per episode, or again every
                 `backlog_every` s
    redrive      Redrive(...): while idle, failed jobs get another round
    grace        s that running jobs get to end when the worker stops
    lease        s a claim holds without a heartbeat; renewed every third
    poll         s between looks for work, the net under lost hints
    role         "leader", "follower" or "auto": one worker of the fleet prunes, redrives and ticks schedules, see
                 `treadle.worker.leader`; None: this one does, whatever others do
    ordered      start jobs strictly in the order of the line: one claim at a time, not two that overlap
    recovery     how long to wait before trying again when the storage is away
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
        self.patient = True  # whether items of a batch wait for others; a test that drains does not
        self.pools = Executors(self.name, concurrency)
        self._session: WorkerSession | None = None
        self._stopping: asyncio.Task[None] | None = None

    # --- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the app if it is not, and begin to claim.

        Where the storage cannot be reached, or takes nothing now, it says so once and waits until it does. Raises
        UnknownTask, and what opening raises when waiting would not help (BadUrl, SchemaTooNew, NotADatabase,
        StorageDenied).
        """
        if self._session is not None:
            raise BadOption("worker", "it runs already")
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
        """A queue of this worker that no task of the app uses by default: a mistyped name claims nothing."""
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
        """The storage, with what the app's code declares in it."""
        storage = await self.app.open()
        try:
            self._check_queues(confined(storage))
            if self.queues():
                await self.app.prepare()
        except BaseException:
            await self.app.release()
            raise
        return storage

    def _check_queues(self, only: tuple[str, ...]) -> None:
        """Raise BadOption where the token of this process (`only`: its queues) does not let it do what was asked."""
        outside = [queue for queue in self.queues() if only and queue not in only]
        if outside:
            raise BadOption(
                "queues",
                f"the token is bound to {', '.join(only)}, and this worker would claim from {', '.join(outside)}; give "
                f"queues={list(only)}, or a token of those queues",
            )
        if only and self._setup.role == "leader":
            raise BadOption("role", f"the token is bound to {', '.join(only)}: a leader tends the jobs of every queue")

    @answers_coroutine
    def run(self) -> Coroutine[Any, Any, None]:
        """Run until SIGTERM or SIGINT: the first stops decently, the second at once.

        The process is taken to be the worker's: what has been imported by now is no more looked at by the garbage
        collector (`gc.freeze`), which would hold the loop for 7-14 ms each time; and it looks at the young once in
        5,000 new objects (`gc.set_threshold`), as a job leaves no cycles behind: 1 us a job of 6.7 less.
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
                if not starting.done():  # it still waits for its storage
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
        """Claim no more, tell the functions that run, give them `grace` seconds to end, then cancel them and hand
        their jobs back, uncounted. Called again meanwhile, it waits for the first call.

        Cancelled, as by a timeout around it, it has no grace any more: it cancels the functions at once, and returns
        when they have ended or a few seconds have passed. Called by a job of this worker it does not wait, for that
        would be for itself: the worker stops once that job has ended. May be called on any event loop.
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
        if job is not None and any(run.context is job for run in session.state.running.values()):
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
        """Claim and start these jobs, those of them that may start now and that there is a slot for."""
        if self._session is not None:
            await self._session.run_ids(ids)

    # --- for its loops

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
        found[FLOW] = None, None  # the roots of compositions: whoever serves their queue ends them
        return found | {own.name: (None, None) for own in self.app.own.values() if own.serves in (None, *names)}
