"""One start of a worker: builds its parts, starts and restarts its loops, and stops them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from treadle.concurrency.uncut import UncutCalls
from treadle.core import defaults
from treadle.core.errors import StorageError
from treadle.core.events import Emitter, Event
from treadle.core.model import HeartbeatResult, LeaseRenewal
from treadle.execution import Runner
from treadle.execution.job_run import Site
from treadle.execution.middleware import overrides
from treadle.policy import guilt, judge
from treadle.policy.claim_plan import Rooms
from treadle.policy.throttle import AIMD
from treadle.storage import hand_offs
from treadle.worker import job_log
from treadle.worker.capacity import Capacity
from treadle.worker.claim_builder import ClaimBuilder
from treadle.worker.claims_by_id import ClaimsById
from treadle.worker.config import WorkerConfig
from treadle.worker.dispatcher import Dispatcher, dispatchers_for
from treadle.worker.durable_backend import WorkerDurableBackend
from treadle.worker.executor import Executor
from treadle.worker.executors.batches import Batches
from treadle.worker.executors.pools import Executors
from treadle.worker.handoff import HandOff
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.job_metrics import JobMetrics
from treadle.worker.jobs_of_others import JobsOfOthers
from treadle.worker.leader import LeaderDuties, LeaderElection
from treadle.worker.log_capture import LogCapture
from treadle.worker.lost_jobs import LostReporter
from treadle.worker.misfit_release import MisfitRelease
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import Opened, WorkerHost, WorkerParts
from treadle.worker.payloads import LargeTexts
from treadle.worker.place import place_of
from treadle.worker.resource_use import ResourceUse
from treadle.worker.run_reports import reporter_of
from treadle.worker.settler import Settler
from treadle.worker.side_loops import side_loops
from treadle.worker.sign_off import HURRY, LastCall, sign_off
from treadle.worker.state import WorkerState
from treadle.worker.throttler import Throttler
from treadle.worker.timeouts import Timeouts
from treadle.worker.trials import Trials
from treadle.workflow import WorkflowFinisher

log = logging.getLogger("treadle")

HEALTHY = 60.0  # s without an error, after which a loop's failures are forgotten
EXIT = 2.0  # s from the release of jobs whose threads still run, in a process that exits, until they are queued
HANGING = 5  # looks of a stop after which a worker that holds no job no longer waits for an answer of its storage
LOOK = 1.0  # s between two looks of a stop; it ends after two if the storage is away and nothing is left to settle


def tell(emitter: Emitter, worker: str, name: str, error: BaseException | None = None) -> None:
    """Emit an event of a worker."""
    if emitter.wants(name):
        emitter.emit(Event(name=name, worker=worker, error=error))


class WorkerSession:
    """The state and the loops of a worker, from one start to its stop."""

    def __init__(
        self,
        app: WorkerHost,
        config: WorkerConfig,
        queues: dict[str, int],
        worker_tasks: Callable[[], Rooms],
        pools: Executors,
        opened: Opened,
        outage: StorageOutage,
        patient: bool,
    ) -> None:
        self.app, self.config, self.queues, self.worker_tasks = app, config, queues, worker_tasks
        storage, self.life, self.outage = opened.storage, opened.life, outage
        self.storage = storage
        self.loop = asyncio.get_running_loop()
        use = ResourceUse(config.resources) if config.resources else None
        state = self.state = WorkerState(config.name, config.concurrency, use)
        self.timeouts = Timeouts(self.loop)
        self.batches = Batches(self.state, pools.threads, overrides(app.layers, "call"), patient, self.on_wait)
        self.capacity = (
            None
            if use is None
            else Capacity(use, app.tasks, state.running, self.batches, self.loop.time, state.wake.set)
        )
        self.lost = LostReporter(storage, app.emitter, config.name, outage.over.set)
        self.misfits = MisfitRelease(self.state.name, app.tasks, storage, app.misfit_wait)
        self.heartbeat = self._make_heartbeat()
        self.election = LeaderElection(
            config.role,
            self.state.claim_id(),
            storage,
            self.heartbeat.presence,
            self.leader_duties,
            self.on_leader_change,
        )
        self.maintains = not storage.capabilities.queues
        self.metrics = self._make_metrics()
        self.capture = None if config.capture_logs is None else LogCapture(config.capture_logs)
        self.calls = UncutCalls()  # what the worker writes about itself, and takes back when it stops
        parts = self._make_parts(pools)
        settler = Settler(parts, self.lost)
        self.trials = self._make_trials(parts, opened)
        self.executor = self._make_executor(parts, pools, settler)
        start = self.executor.start_all
        self.handoff = HandOff(self.state, start, hand_offs(storage), min(config.poll, config.lease / 2))
        build = ClaimBuilder(parts, queues, self.election, self.tasks, self.handoff, self.maintains)
        handoffs = [self.handoff, *(HandOff(self.state, start) for _ in range(dispatchers_for(config, storage) - 1))]
        self.dispatchers = [
            Dispatcher(number, parts, build, handoff, self.executor, settler, self.trials)
            for number, handoff in enumerate(handoffs)
        ]
        self.loops: list[asyncio.Task[None]] = []
        self.by_id = ClaimsById(parts, self.tasks, self.executor, self.loops, self.trials)
        self.side_loops: list[asyncio.Task[None]] = []
        self.hurry = asyncio.Event()  # a second signal: no grace
        self._grace_ends = float("inf")  # the loop's time when running jobs are cancelled
        self._shortened = asyncio.Event()  # `_grace_ends` has changed
        self.stop_logging: Callable[[], None] = lambda: None

    def _make_heartbeat(self) -> Heartbeat:
        config = self.config
        return Heartbeat(
            self.state,
            self.storage,
            self.lost,
            # Without tasks it ends workflows and runs Treadle's own jobs: no job of a user waits for it.
            [] if config.tasks == () else list(self.queues),
            config.lease,
            self.tasks,
            self.batches.gathering,
            partial(place_of, config, self.app.tasks, self.capacity, self.misfits.versions),
        )

    def _make_metrics(self) -> JobMetrics | None:
        app = self.app
        if app.counts is not None:
            app.counts.expect((task.queue, name) for name, task in app.tasks.items())
        elif not self.config.metrics:
            return None
        return JobMetrics(self.state.claim_id()[-defaults.MAX_NAME :], app.now, app.counts)

    def _make_parts(self, pools: Executors) -> WorkerParts:
        app = self.app
        return WorkerParts(
            app=app,
            config=self.config,
            storage=self.storage,
            misfits=self.misfits,
            texts=LargeTexts(self.config.name, self.storage, app.random),
            capacity=self.capacity,
            outage=self.outage,
            state=self.state,
            timeouts=self.timeouts,
            batches=self.batches,
            site=Site(self.storage, self.loop, self.life, pools.threads),
            metrics=self.metrics,
            capture=self.capture,
            run_reports=reporter_of(app.layers, self.state.troubles, self.lost, app.now),
        )

    def _make_trials(self, parts: WorkerParts, opened: Opened) -> Trials:
        arriving, on_open = lambda: self.handoff.outstanding, lambda: self.by_id.claim_late()  # noqa: PLW0108
        return Trials(parts, self.heartbeat, self.calls, opened.census, arriving, opened.offer, on_open)

    def _make_executor(self, parts: WorkerParts, pools: Executors, settler: Settler) -> Executor:
        app = self.app
        return Executor(
            parts,
            Runner(app, pools, self.batches, self.state.troubles),
            WorkflowFinisher(self.storage, app.tasks, app.reducers, app.sizes.result),
            WorkerDurableBackend(parts, self.heartbeat, pools.threads, self.calls),
            settler,
            self.heartbeat.lose,
            self.trials,
        )

    def on_wait(self, seconds: float) -> None:
        """Claimed jobs will wait for this many seconds before they run."""
        self.heartbeat.outlasted_by(seconds)

    def start(self) -> None:
        """Start all loops; each is restarted when it fails."""
        self.trials.open()
        throttle = self.config.throttle
        self.stop_logging = job_log.follow(self.app.emitter, self.config.name)
        if self.capture is not None:
            self.capture.attach()
        self.state.claiming = bool(self.queues)
        if throttle is not None:
            self.state.pause = Throttler.UNASKED
        if isinstance(throttle, AIMD):
            throttle.attach(self.app.emitter)
        self.loops += [asyncio.Task(self.supervise("dispatcher", dispatcher.run)) for dispatcher in self.dispatchers]
        self.side_loops = [asyncio.Task(self.supervise(name, loop)) for name, loop in side_loops(self).items()]

    # --- duties of the leader

    def tasks(self) -> Rooms:
        """The tasks that this worker claims now; those of the leader only if this worker does its duties."""
        system, election = self.app.system_tasks, self.election
        return {
            name: room
            for name, room in self.worker_tasks().items()
            if name not in system or not system[name].by_leader or election.ticks(name)
        }

    def leader_duties(self) -> LeaderDuties:
        system, names = self.app.system_tasks, tuple(self.worker_tasks())
        ticks = tuple(name for name in names if name in system and system[name].by_leader)
        return LeaderDuties(ticks, names if self.config.redrive is not None else ())

    def tasks_to_redrive(self) -> list[str]:
        return self.election.redrives(self.worker_tasks())

    def on_leader_change(self) -> None:
        """The leader has changed, so there may be other tasks to claim."""
        self.state.demand.notify()

    def tell(self, name: str, error: BaseException | None = None) -> None:
        tell(self.app.emitter, self.config.name, name, error)

    async def supervise(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop, and restart it after an error with growing pauses, which `HEALTHY` s without an error reset."""
        failures, retry = 0, self.config.recovery
        while True:
            started_at = self.loop.time()
            # Not every loop reports an answer of the storage: one that has run for this long had an answer.
            healthy = self.loop.call_later(HEALTHY, self.outage.answered, name) if failures else None
            try:
                return await loop()
            except Exception as error:
                failures = 1 if self.loop.time() - started_at > HEALTHY else failures + 1
                if isinstance(error, StorageError):
                    await self.outage.failed(name, error)
                else:
                    log.exception("a loop of worker %s failed; restarting it", self.config.name)
                    self.tell("worker.error", error)
                    await asyncio.sleep(retry.delay(failures, self.app.random()))
            finally:
                if healthy is not None:
                    healthy.cancel()

    async def run_ids(self, ids: Sequence[str]) -> None:
        """See `ClaimsById.run`."""
        await self.by_id.run(ids)

    def jobs_of_others(self) -> JobsOfOthers:
        """Acts for other workers of this fleet."""
        return JobsOfOthers(self.storage, self.app.tasks, self._beat, self.config.lease)

    async def _beat(self, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        return await self.calls.make(self.storage.heartbeat(self.heartbeat.presence(), renewals, lease))

    def cancel_runs(self) -> None:
        for run in list(self.state.running.values()):
            run.stop("stop")

    def claim_no_more(self) -> None:
        """Claim and start nothing more, and request the running functions to stop."""
        self.state.stop()
        self.state.heartbeat_now.set()  # it notes the stop in the running jobs
        for run in list(self.state.running.values()):
            if self.batches.waits(run.job_run) or self.trials.waits(run):
                run.stop("stop")  # its call has not begun, so another worker may run it
            else:
                run.request_stop()

    async def stop(self, grace: float, exits: bool = False) -> None:
        """Wait for the running jobs, release those that do not end, and end the loops. Call `claim_no_more` first.

        exits  the process exits right after
        """
        state = self.state
        self.outage.stop(self.loop.time() + grace + self.config.lease)
        try:
            await self._let_end(grace)
        finally:  # also if this is cancelled: a loop left behind would renew leases for ever
            ending = (*self.loops, *self.side_loops, *state.apart)
            for task in ending:
                task.cancel()
            self.handoff.close()
            self.trials.close()
            self.stop_logging()
            if self.capture is not None:
                self.capture.detach()
            if isinstance(self.config.throttle, AIMD):
                self.config.throttle.detach(self.app.emitter)
            self.timeouts.close()
            await asyncio.gather(*ending, return_exceptions=True)
        if state.running:
            names = ", ".join(sorted({run.record.job.task for run in state.running.values()}))
            text = "worker %s stops while %d jobs are still running (%s); they are queued again, uncounted, when %s"
            when = "this process is gone" if exits else "their leases have expired"
            log.warning(text, state.name, len(state.running), names, when)
        self.heartbeat.gone = True
        last: list[LastCall] = [self.election.leave]
        if self.metrics is not None and self.config.metrics:
            last.append(partial(self.metrics.store, self.storage))
        last.append(self.heartbeat.once)
        try:
            if not await sign_off(self.calls, last, self.hurry):
                log.info("worker %s could not sign off; it stays listed until its lease expires", state.name)
        finally:
            if self.metrics is not None:
                self.metrics.end()
        await self.lost.settled()

    async def leave(self) -> None:
        """Release the jobs that still run in threads, to be queued once this process is gone: its last act."""
        released = [
            guilt.without_kind(run.record, judge.released(run.record, EXIT, run.job_run.carried))
            for run in self.state.running.values()
        ]
        if released:
            await sign_off(self.calls, [partial(self.storage.settle, released)], self.hurry)

    def shorten_grace(self, grace: float) -> None:
        """During a stop, cancel the running jobs after at most this many seconds."""
        ends = self.loop.time() + grace
        if ends < self._grace_ends:
            self._grace_ends = ends
            self.outage.stop(ends + self.config.lease)
            self._shortened.set()

    async def _let_end(self, grace: float) -> None:
        """Wait `grace` seconds for the running jobs; then cancel them, and wait until they are released. If the storage
        is away and the worker holds no job, a loop can only repeat a lost claim: it is not waited for."""
        self._grace_ends = min(self._grace_ends, self.loop.time() + grace)
        hurry, loops = asyncio.Task(self.hurry.wait()), list(self.loops)
        shortened: asyncio.Task[Any] = asyncio.Task(self._shortened.wait())
        try:
            done, idle, waits_in_vain = asyncio.Task(asyncio.wait(loops)), 0, False
            while not done.done() and not hurry.done() and (remaining := self._grace_ends - self.loop.time()) > 0:
                self._shortened.clear()
                remaining = min(remaining, LOOK)
                await asyncio.wait([done, hurry, shortened], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
                if shortened.done():
                    shortened = asyncio.Task(self._shortened.wait())
                idle = idle + 1 if self.state.holds_nothing else 0
                waits_in_vain = idle > (HANGING if self.outage.away is None else 1)
                if waits_in_vain:
                    break
            if not done.done() and not waits_in_vain:
                self.cancel_runs()
                # Async functions end now. A function in a thread keeps its slot until it returns.
                await asyncio.wait([done], timeout=HURRY if self.hurry.is_set() else max(1.0, min(grace, 5.0)))
            done.cancel()
        finally:
            hurry.cancel()
            shortened.cancel()
