"""`WorkerCore`, which `Worker` starts and stops. Each start makes a `WorkerSession`, which has the loops."""

from __future__ import annotations

import asyncio
import difflib
import gc
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from datetime import timedelta

from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.concurrency.spawn import mark_retrieved, started
from treadle.core import defaults, ids
from treadle.core.errors import PASSING, BadOption, ResourceFailed, StorageDenied, UnknownTask
from treadle.core.events import Event
from treadle.core.model import Record
from treadle.core.ranges import MOST_CALL, MOST_QUEUES, at_most
from treadle.policy.claim_plan import Rooms
from treadle.policy.retry import seconds
from treadle.resources import Injector
from treadle.storage.contract import Storage
from treadle.worker.census import Census
from treadle.worker.config import WorkerConfig
from treadle.worker.executors.threads import Executors
from treadle.worker.health import WorkerHealth, WorkerStage
from treadle.worker.job_events import tell
from treadle.worker.jobs_of_others import JobsOfOthers
from treadle.worker.logs import switch_on
from treadle.worker.os_signals import Handler, Signals
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import Opened, Suspect, WorkerHost, WorkerParts
from treadle.worker.probes import HealthReporter, Probes
from treadle.worker.session import WorkerSession
from treadle.worker.trials import Offer
from treadle.workflow.plan import FLOW

log = logging.getLogger("treadle")

LISTENERS = 5.0  # s a stopping worker waits for async listeners
MISTYPED = 10  # queues without a task, at most, that the log compares with those in use
YOUNG = 5_000  # new objects between two runs of the garbage collector


def calm_collector() -> None:
    """Set up the garbage collector of a worker process: see `Worker.run`."""
    gc.collect()
    gc.freeze()
    if 0 < gc.get_threshold()[0] < YOUNG:  # unless the program has raised it, or disabled it
        gc.set_threshold(YOUNG)


class WorkerCore:
    """The engine of one worker: its settings, its pools, and its session while it runs.

    patient  False: items of a batch wait only for items that are queued already. For tests
    """

    def __init__(self, app: WorkerHost, config: WorkerConfig, patient: bool = True) -> None:
        self.app, self.config, self.patient = app, config, patient
        self.pools = Executors(config.name, config.concurrency)
        self.session: WorkerSession | None = None
        self.exits = False  # the process exits when `run` returns, and with it the threads of functions
        self.failed: ResourceFailed | None = None  # why it stops by itself
        self._on_failure: Callable[[], None] | None = None  # passed to this start, see `start`
        self._asked: asyncio.Event | None = None  # set: `run` stops; None: `run` does not run
        self.census: Census | None = None  # None: use the app's census, which counts what runs in this process
        self.offer_suspects: Offer | None = None  # set before the start: another process runs the suspects
        self._outage: StorageOutage | None = None  # outage of this start
        self._drain: float | None = None  # s that running jobs get when `run` stops because it was drained
        self._stopping: asyncio.Task[None] | None = None
        self._failing: asyncio.Task[None] | None = None

    async def start(self, on_failure: Callable[[], None] | None = None) -> None:
        """See `Worker.start`.

        on_failure  called when the lifespan of the app has ended while the worker runs: the caller must stop it. None:
                    it begins to stop by itself
        """
        if self.session is not None:
            raise BadOption("worker", "it is already running")
        self.failed, self._on_failure = None, on_failure
        for name in self.config.tasks or ():
            if name not in self.app.tasks:
                close = difflib.get_close_matches(name, self.app.tasks, 1)
                raise UnknownTask(name, tuple(self.app.tasks), close[0] if close else None)
        at_most("queues", self.queues(), MOST_QUEUES)
        at_most("tasks", self.tasks(), MOST_CALL)
        switch_on()
        outage = self._outage = StorageOutage(self.config.name, self.config.recovery, self.app.random, self._tell)
        async with AsyncExitStack() as undo:  # undone if the start fails
            undo.callback(setattr, self, "_outage", None)
            storage = await self._open(outage)
            undo.push_async_callback(self.app.release)
            resources = self.app.resources
            life = resources.none() if self.config.tasks == () else await resources.enter(self._injectors())
            undo.push_async_callback(resources.leave, life)
            switch_on()  # a lifespan may set up logging, too
            opened = Opened(storage, life, self.census or self.app.census, self.offer_suspects)
            parts = WorkerParts(
                self.app, self.config, self.queues(), self.tasks, self.pools, opened, outage, self.patient
            )
            self.session = WorkerSession(parts, opened)
            self.session.start()
            life.when_broken.append(self._on_broken)
            undo.pop_all()
        self._warn_of_queues()
        self._tell("worker.started")

    def _injectors(self) -> list[Injector]:
        """The dependencies whose values are made before the first claim: none in tests and for inline jobs, where those
        that are used are made when a run needs them."""
        if not self.patient or self.config.queues == {}:
            return []
        names = self.app.tasks if self.config.tasks is None else self.config.tasks
        tasks = [self.app.tasks[name] for name in names]
        every = [version for task in tasks for version in task.versions.values()]
        return [task.injector for task in every if task.injector is not None and task.kind != "process"]

    def _on_broken(self, error: ResourceFailed) -> None:
        """The lifespan has ended while jobs use its state: stop."""
        self.failed = error
        log.error("worker %s stops: %s", self.config.name, error, exc_info=error)
        self._tell("worker.error", error)
        if self._on_failure is not None:
            self._on_failure()
        else:
            self._failing = started(self.stop(), context=Context())

    def _warn_of_queues(self) -> None:
        """Log a queue that no task of the app uses and that resembles one in use: a mistyped name claims nothing."""
        known = {task.queue for task in self.app.tasks.values()}
        unused = [queue for queue in self.config.queues or () if queue not in known]
        if len(unused) > MISTYPED:  # a family of queues that callers choose
            return
        for queue in unused:
            if close := difflib.get_close_matches(queue, known, 1):
                text = "worker %s: no task of this app uses the queue %r; did you mean %r?"
                log.warning(text, self.config.name, queue, close[0])

    async def _open(self, outage: StorageOutage) -> Storage:
        while True:
            try:
                storage = await self._opened()
            except PASSING as error:
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
                if why := storage.capabilities.read_only:  # later, a file may become writable again
                    raise StorageDenied(f"a worker must write to its storage: {why}")
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
        if only and self.config.role == "leader":
            raise BadOption("role", f"the token is bound to {', '.join(only)}, but a leader works for every queue")

    async def run(self, probes: Probes | None = None, after: Handler | None = None) -> None:
        """Run until SIGTERM or SIGINT. `after`: their handler from then on."""
        calm_collector()
        loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            stop_requested.set()
            if self.session is not None and signals > 1:
                self.session.hurry.set()
            elif self.session is not None:  # it may be draining, with a longer grace
                self.session.shorten_grace(self.config.grace)

        self._asked = stop_requested
        with Signals(loop, on_signal, after):
            if probes is None:
                await self._until(stop_requested)
                return
            async with HealthReporter(probes, lambda: self.health().verdict) as reporter:
                if reporter.address is not None:
                    log.info("worker %s: probes at %s/livez and /readyz", self.config.name, reporter.address.url)
                stop = asyncio.create_task(self._report_stop(stop_requested, reporter))
                try:
                    await self._until(stop_requested)
                finally:
                    stop.cancel()

    async def _report_stop(self, asked: asyncio.Event, reporter: HealthReporter) -> None:
        await asked.wait()
        reporter.stopping(self.config.grace + self.config.lease)

    async def _until(self, asked: asyncio.Event) -> None:
        """Start, and stop when asked to."""
        starting, stopping = asyncio.create_task(self.start(asked.set)), asyncio.create_task(asked.wait())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():  # it still waits for the storage
                starting.cancel()
                await asyncio.wait([starting])
            if not starting.cancelled():
                starting.result()
                await asked.wait()
                await self.stop(self._drain)
                if self.failed is not None:
                    raise self.failed
        finally:
            self._asked = None
            starting.cancel()
            stopping.cancel()
            if self.session is not None:  # it was cancelled
                await self.stop(0)

    def drain(self, reason: str, grace: float) -> None:
        """Let `run` stop, with this many seconds for the running jobs; another process has taken over. A signal ends
        the jobs within the usual grace. Does nothing if the worker is stopping already."""
        if self._drain is not None or self._asked is None:
            return
        self._drain = grace
        log.info("worker %s is replaced: %s; its running jobs get %g s to end", self.config.name, reason, grace)
        if self.session is not None:
            self.session.state.draining = reason
            self.session.state.heartbeat_now.set()
        if self.app.emitter.wants("worker.recycling"):
            self.app.emitter.emit(Event(name="worker.recycling", worker=self.config.name, reason=reason))
        self._asked.set()

    async def stop(self, grace: float | timedelta | None = None) -> None:
        """See `Worker.stop`."""
        session = self.session
        if session is None:
            return
        if session.loop is not asyncio.get_running_loop():
            with suppress(LoopEnded):
                await LoopCall(session.loop, lambda: self.stop(grace)).wait()
            return
        if self._stopping is None:
            wait = self.config.grace if grace is None else seconds(grace, "grace")
            self._tell("worker.stopping")
            session.claim_no_more()
            self._stopping = started(self._stop(session, wait), context=Context())
            self._stopping.add_done_callback(mark_retrieved)
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
            await session.stop(grace, self.exits)
        finally:
            self.session = self._stopping = self._outage = None
            try:
                await self.pools.close(session.hurry)
                await self._leave(session)
                self._tell("worker.stopped")
                await self.app.emitter.settle(LISTENERS)
                if self.exits:
                    await session.leave()
            finally:
                await self.app.release()

    async def _leave(self, session: WorkerSession) -> None:
        """Close the resources of the app, unless another worker uses them."""
        if self._on_broken in session.parts.life.when_broken:
            session.parts.life.when_broken.remove(self._on_broken)
        error = await self.app.resources.leave(session.parts.life, session.hurry)
        if error is not None:
            self._tell("worker.error", error)

    def health(self) -> WorkerHealth:
        """See `Worker.health`."""
        session = self.session
        stage: WorkerStage = "stopped" if self._outage is None else "starting"
        if session is not None:
            stage = "stopping" if session.state.stopping else "claiming"
        return WorkerHealth(
            worker=self.config.name,
            stage=stage,
            running=0 if session is None else len(session.state.running),
            slots=self.config.concurrency,
            started=0 if session is None else session.state.started,
            storage_away=None if self._outage is None else self._outage.away,
        )

    @property
    def running(self) -> Sequence[Record]:
        """The jobs that run here now."""
        return [] if self.session is None else [run.record for run in self.session.state.running.values()]

    async def run_ids(self, ids: Sequence[str]) -> None:
        """Claim and start the jobs of this list that may start now, up to the number of free slots."""
        if self.session is not None:
            await self.session.by_id.run(ids)

    # --- for the supervisor of the process, on the loop of the worker

    @property
    def shortest_lease(self) -> float:
        """Seconds of the shortest lease that this worker renews; 0: it does not run."""
        return 0.0 if self.session is None else 3 * self.session.state.heartbeat_in

    def jobs_of_others(self) -> JobsOfOthers | None:
        """Acts for other workers of this fleet; None: this one does not run."""
        if self.session is None:
            return None
        parts = self.session.parts
        return JobsOfOthers(parts.storage, self.app.tasks, parts.heartbeat.send, self.config.lease)

    # --- suspects: jobs that may have killed their worker, see `worker/trials.py`; on the loop of the worker

    def hand_over(self, id: str, version: int, explained: Collection[str] = ()) -> bool:
        """Leave a suspect that `offer_suspects` was given to another process: from now on this worker no longer renews
        its lease, and does not release it. Returns False if it does not hold it any more.

        explained  workers whose end other suspects explain
        """
        if self.session is None:
            return False
        self.session.trials.explain(explained)
        return self.session.trials.hand_over(id, version)

    def trials_failed(self) -> None:
        """No other process can run suspects, so this worker runs them itself, while it runs nothing else."""
        self.offer_suspects = None
        if self.session is not None:
            self.session.trials.failed()

    async def try_alone(self, suspect: Suspect, taken: Callable[[], None]) -> bool:
        """Run a suspect that another worker holds, in this process, which runs nothing else. Returns when its outcome
        is stored; False if it did not run: it is not held under this version any more, or the worker stops.

        taken  called when the row says that the job runs alone, just before it begins
        """
        return self.session is not None and await self.session.by_id.try_alone(suspect, taken)

    def _tell(self, name: str, error: BaseException | None = None) -> None:
        tell(self.app.emitter, self.config.name, name, error)

    def queues(self) -> dict[str, int]:
        """The queues that it claims from, with their weights."""
        if self.config.queues is not None:
            return self.config.queues
        selected = self.config.tasks
        named = [task for name, task in self.app.tasks.items() if selected is None or name in selected]
        tasks = [task for task in named if self.config.runs(task.needs)]
        return dict.fromkeys((task.queue for task in tasks), 1) or {defaults.QUEUE: 1}

    def tasks(self) -> Rooms:
        """The tasks that it may claim, system tasks included: those whose needs its labels and resources meet."""
        names = self.app.tasks if self.config.tasks is None else self.config.tasks
        rooms: Rooms = {}
        for name in names:
            task = self.app.tasks[name]
            if self.config.runs(task.needs):
                rooms[name] = None, task.lease
        rooms[FLOW] = None, None  # the roots of compositions: any worker of their queue ends them
        return rooms | {
            task.name: (None, None) for task in self.app.system_tasks.values() if task.serves in (None, *names)
        }
