"""One start of a worker: its loops, what they share, and how they are ended decently.

Without it there would be pumps and runners, and nobody to start, restart and stop them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from treadle.core import defaults
from treadle.core.events import Emitter, Event
from treadle.core.model import Claim, Record
from treadle.errors import StorageError
from treadle.execution.runner import Runner
from treadle.policy.throttle import AIMD
from treadle.storage.contract import Storage, confined
from treadle.worker import job_log
from treadle.worker.backlog import BacklogMonitor
from treadle.worker.claim_builder import ClaimBuilder, Rooms
from treadle.worker.dispatcher import Dispatcher, dispatchers_for
from treadle.worker.durable_backend import WorkerDurableBackend
from treadle.worker.executor import Executor
from treadle.worker.executors.batches import Batches
from treadle.worker.executors.pools import Executors
from treadle.worker.handoff import HandOff
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.leader import LeaderDuties, LeaderElection
from treadle.worker.listener import Listener
from treadle.worker.lost_jobs import LostReporter
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import WorkerConfig, WorkerHost, WorkerParts
from treadle.worker.pruner import Pruner
from treadle.worker.redrive import Redriver
from treadle.worker.settler import Settler
from treadle.worker.state import Timers, WorkerState
from treadle.worker.throttler import Throttler
from treadle.workflow.finisher import WorkflowFinisher

log = logging.getLogger("treadle")

HURRY = 1.0  # seconds for each step of a stop that has no time left
HEALTHY = 60.0  # s without an error, after which a loop's failures are forgotten


def tell(emitter: Emitter, worker: str, name: str, error: BaseException | None = None) -> None:
    """An event of a worker."""
    if emitter.wants(name):
        emitter.emit(Event(name=name, worker=worker, error=error))


class WorkerSession:
    """One start of a worker: everything that is gone when it has stopped."""

    def __init__(
        self,
        app: WorkerHost,
        setup: WorkerConfig,
        queues: dict[str, int],
        known: Callable[[], Rooms],
        pools: Executors,
        storage: Storage,
        outage: StorageOutage,
        patient: bool,
    ) -> None:
        self.app, self.setup, self.queues, self.known = app, setup, queues, known
        self.storage, self.outage = storage, outage
        self.loop = asyncio.get_running_loop()
        self.state = WorkerState(setup.name, setup.concurrency)
        self.timers = Timers(self.loop)
        self.batches = Batches(self.state, pools.threads, patient, self.waits_for)
        self.lost = LostReporter(storage, app.emitter, setup.name)
        self.heartbeat = Heartbeat(
            self.state, storage, self.lost, list(queues), setup.lease, self.tasks, self.batches.gathering
        )
        self.election = LeaderElection(
            setup.role, self.state.ticket(), storage, self.heartbeat.presence, self.tended, self.changed
        )
        self.tends = not confined(storage)
        parts = WorkerParts(
            app=app,
            config=setup,
            storage=storage,
            outage=outage,
            state=self.state,
            timers=self.timers,
            batches=self.batches,
        )
        settler = Settler(parts, self.lost)
        self.executor = Executor(
            parts,
            Runner(app, pools, self.batches, self.state.troubles),
            WorkflowFinisher(storage, app.tasks, app.reducers, app.sizes.result),
            WorkerDurableBackend(parts, self.heartbeat, pools.threads),
            settler,
        )
        start = self.executor.start_handed
        self.handoff = HandOff(self.state, start, storage, min(setup.poll, setup.lease / 2))
        build = ClaimBuilder(parts, queues, self.election, self.tasks, self.handoff, self.tends)
        self.dispatchers = [
            Dispatcher(
                number, parts, build, HandOff(self.state, start) if number else self.handoff, self.executor, settler
            )
            for number in range(dispatchers_for(setup, storage))
        ]
        self.loops: list[asyncio.Task[None]] = []
        self.beside: list[asyncio.Task[None]] = []
        self.hurry = asyncio.Event()  # a second signal: no grace
        self.unfollow: Callable[[], None] = lambda: None

    async def declared(self) -> None:
        """Store what code declares once more where the storage has lost it. Looks after an outage, after a job of this
        worker was lost, and now and then."""
        self.lost.doubted = self.outage.over.set
        while True:
            self.outage.over.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(defaults.DECLARED_EVERY):
                    await self.outage.over.wait()
            if await self.app.prepare_again():
                log.warning(
                    "worker %s: the storage has lost the declared limits and schedules; they are stored again",
                    self.setup.name,
                )
            self.outage.answered("declared")
            await asyncio.sleep(min(defaults.DECLARED_LEAST, defaults.DECLARED_EVERY))  # many jobs may be lost at once

    def waits_for(self, seconds: float) -> None:
        """Jobs that were claimed do not run for so long."""
        self.heartbeat.outlasted_by(seconds)

    def start(self) -> None:
        """Begin all loops; each is restarted when it fails."""
        throttle = self.setup.throttle
        self.unfollow = job_log.follow(self.app.emitter, self.setup.name)
        self.state.claiming = bool(self.queues)
        if throttle is not None:
            self.state.pause = Throttler.UNASKED
        if isinstance(throttle, AIMD):
            throttle.attach(self.app.emitter)
        self.loops = [asyncio.Task(self.supervise("pump", dispatcher.run)) for dispatcher in self.dispatchers]
        self.beside = [asyncio.Task(self.supervise(name, side)) for name, side in self.sides().items()]

    def sides(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops beside the dispatchers, by the names that an outage calls them."""
        answered, throttle = self.outage.answered, self.setup.throttle
        listener = Listener(self.state, self.storage, self.queues)
        found: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "beat": lambda: self.heartbeat.run(answered),
            "listen": lambda: listener.run(answered),
        }
        if self.tends:
            pruner = Pruner(self.storage, self.election.tends)
            found["prune"] = lambda: pruner.run(answered)
            if self.queues:
                found["declared"] = self.declared
            if self.setup.role is not None:
                found["lead"] = lambda: self.election.run(answered)
        if throttle is not None:
            throttler = Throttler(self.state, throttle, self.heartbeat.outlasted_by)
            found["throttle"] = lambda: throttler.run(answered)
        return found | self.extras()

    # --- what one worker does for all

    def tasks(self) -> Rooms:
        """What this worker claims now: the tending tasks only if that is its part."""
        own, election = self.app.own, self.election
        return {
            name: room
            for name, room in self.known().items()
            if name not in own or not own[name].tends or election.ticks(name)
        }

    def tended(self) -> LeaderDuties:
        own, names = self.app.own, tuple(self.known())
        ticks = tuple(name for name in names if name in own and own[name].tends)
        return LeaderDuties(ticks, names if self.setup.redrive is not None else ())

    def redriven(self) -> list[str]:
        return self.election.redrives(self.known())

    def changed(self) -> None:
        """Another worker leads: there may be other work for us."""
        self.state.hinted = True
        self.state.wake.set()

    def extras(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that only some workers have."""
        setup, found = self.setup, dict[str, Callable[[], Coroutine[Any, Any, None]]]()
        if setup.on_backlog is not None:
            found["backlog"] = BacklogMonitor(
                setup.on_backlog,
                setup.backlog_after,
                setup.backlog_every,
                self.state,
                self.storage,
                self.queues,
                self.outage.answered,
            ).run
        if setup.redrive is not None:
            found["redrive"] = Redriver(
                setup.redrive, self.state, self.storage, self.queues, self.redriven, self.app.now, self.outage.answered
            ).run
        return found

    def tell(self, name: str, error: BaseException | None = None) -> None:
        tell(self.app.emitter, self.setup.name, name, error)

    async def supervise(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """An error in a loop is told, and the loop goes on after a while; healthy time makes it forget the error."""
        failures, retry = 0, self.setup.recovery
        while True:
            began = self.loop.time()
            # What a loop does not say itself its health says.
            healthy = self.loop.call_later(HEALTHY, self.outage.answered, name) if failures else None
            try:
                return await loop()
            except Exception as error:
                failures = 1 if self.loop.time() - began > HEALTHY else failures + 1
                if isinstance(error, StorageError):
                    await self.outage.failed(name, error)
                else:
                    log.exception("a loop of worker %s failed; it is started again", self.setup.name)
                    self.tell("worker.error", error)
                    await asyncio.sleep(retry.delay(failures, self.app.chance()))
            finally:
                if healthy is not None:
                    healthy.cancel()

    async def run_ids(self, ids: Sequence[str]) -> None:
        """Returns when it was tried once. A lost answer may have made them ours, so it is asked again, beside."""
        room = min(self.state.free, len(ids))
        if room <= 0 or self.state.stopping:
            return
        self.state.free -= room
        self.state.asking += 1
        tried: asyncio.Future[None] = self.loop.create_future()
        task = asyncio.Task(self.claim_ids(tuple(ids), room, tried))
        self.loops.append(task)
        task.add_done_callback(self.loops.remove)
        await tried

    async def claim_ids(self, ids: tuple[str, ...], room: int, tried: asyncio.Future[None]) -> None:
        ask = Claim(
            worker=self.state.ticket(),
            limit=room,
            ids=ids,
            lease=self.setup.lease,
            tasks=self.tasks(),
            holds=tuple(self.state.running),
        )
        records: Sequence[Record] | None = None
        try:
            while records is None:
                try:
                    records = (await self.storage.claim(ask)).records
                except StorageError as error:
                    _done(tried)
                    await self.outage.failed("inline", error)
        except Exception as error:
            if tried.done():
                log.exception("claiming inline jobs failed; they wait for any worker")
            else:
                tried.set_exception(error)
        finally:
            self.outage.answered("inline")  # or given up, which is as much as this one will say
            self.state.asking -= 1
            self.state.free += room - len(records or ())
            if records:
                self.executor.start_all(records)
            self.state.wake.set()
            _done(tried)

    def cancel_runs(self) -> None:
        for run in list(self.state.running.values()):
            run.stop("stop")

    def claim_no_more(self) -> None:
        """Start nothing from now on, and tell what runs that it should end."""
        state = self.state
        state.stopping, state.claiming = True, False
        state.wake.set()
        for run in list(state.running.values()):
            if self.batches.waits(run.context):
                run.stop("stop")  # nobody has begun it, so another worker may
            else:
                run.tell()

    async def stop(self, grace: float) -> None:
        """Wait for the running jobs, hand back what does not end, and end the loops. `claim_no_more` comes first."""
        state = self.state
        self.outage.give_up_at = self.loop.time() + grace + self.setup.lease
        try:
            await self._let_end(grace)
        finally:  # also where the event loop ends now: a loop left behind would renew leases for ever
            for task in (*self.loops, *self.beside):
                task.cancel()
            self.handoff.close()
            self.unfollow()
            if isinstance(self.setup.throttle, AIMD):
                self.setup.throttle.detach(self.app.emitter)
            self.timers.close()
            await asyncio.gather(*self.loops, *self.beside, return_exceptions=True)
        if state.running:
            names = ", ".join(sorted({run.record.job.task for run in state.running.values()}))
            log.warning(
                "worker %s stops while %d jobs still run (%s); their leases will run out",
                state.name,
                len(state.running),
                names,
            )
        try:
            async with asyncio.timeout(HURRY if self.hurry.is_set() else None):
                await self.election.leave()
                await self.heartbeat.once(gone=True)
        except (StorageError, TimeoutError):
            log.info("worker %s could not say good-bye; it is forgotten after its lease", state.name)
        await self.lost.settled()

    async def _let_end(self, grace: float) -> None:
        """Wait for the running jobs as long as they may take; then cancel them, and wait until they are handed back."""
        hurry, loops = asyncio.Task(self.hurry.wait()), list(self.loops)
        try:
            done = asyncio.Task(asyncio.wait(loops))
            await asyncio.wait([done, hurry], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                self.cancel_runs()
                # Async functions end now. One in a thread ends when it returns: until then its slot is not given back.
                await asyncio.wait([done], timeout=HURRY if self.hurry.is_set() else max(1.0, min(grace, 5.0)))
            done.cancel()
        finally:
            hurry.cancel()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
