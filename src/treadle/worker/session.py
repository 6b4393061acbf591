"""One start of a worker: its loops, what they share, and how they are ended decently.

Without it there would be pumps and runners, and nobody to start, restart and stop them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.core import defaults
from treadle.core.events import Emitter, Event
from treadle.core.job import Sender
from treadle.core.model import Claim, Presence, Record
from treadle.errors import StorageError
from treadle.execution import middleware
from treadle.execution.runner import AnyTask, OwnTask, Runner
from treadle.policy.judge import OnError
from treadle.policy.retry import Retry
from treadle.policy.throttle import AIMD
from treadle.storage.contract import DearTrips, OneByOne, Storage, confined
from treadle.tasks.options import Sizes
from treadle.tasks.reducers import Reducer
from treadle.worker import job_log
from treadle.worker.backlog import Backlog, BacklogMonitor
from treadle.worker.claim_builder import ClaimBuilder, Rooms
from treadle.worker.dispatcher import Dispatcher
from treadle.worker.durable_backend import WorkerDurableBackend
from treadle.worker.executors.batches import Batches
from treadle.worker.executors.pools import Executors
from treadle.worker.handoff import HandOff
from treadle.worker.leader import LeaderDuties, LeaderElection, Role
from treadle.worker.outage import StorageOutage
from treadle.worker.redrive import Redrive, Redriver
from treadle.worker.state import Timers, WorkerState
from treadle.worker.upkeep import Upkeep
from treadle.workflow.finisher import WorkflowFinisher

log = logging.getLogger("treadle")

HURRY = 1.0  # seconds for each step of a stop that has no time left
HEALTHY = 60.0  # s without an error, after which a loop's failures are forgotten
PUMPS = 2  # one trip under way while the other half runs: +50 % on a network storage


class WorkerHost(Protocol):
    """What a worker needs of its app."""

    tasks: dict[str, AnyTask]
    own: dict[str, OwnTask]
    emitter: Emitter
    layers: list[middleware.Middleware]
    on_error: OnError | None
    sizes: Sizes
    reducers: dict[str, Reducer]

    @property
    def client(self) -> Sender: ...

    async def open(self) -> Storage: ...
    async def prepare(self) -> None: ...
    async def prepare_again(self) -> bool: ...
    async def release(self) -> None: ...
    async def results(self, ids: Sequence[str]) -> list[Any]: ...
    def chance(self) -> float: ...
    def now(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """How a worker was asked to work, in seconds; the words are those of `Worker`."""

    name: str
    concurrency: int
    lease: float
    poll: float
    recovery: Retry
    role: Role | None
    ordered: bool
    accept: Callable[[Record], Any] | None
    throttle: Callable[[], Awaitable[Any]] | None
    on_backlog: Callable[[Backlog], Any] | None
    backlog_after: float
    backlog_every: float | None
    redrive: Redrive | None


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
        self.slots = WorkerState(setup.name, setup.concurrency)
        self.timers = Timers(self.loop)
        self.batches = Batches(self.slots, pools.threads, patient, self.waits_for)
        self.election = LeaderElection(
            setup.role, self.slots.ticket(), storage, self.presence, self.tended, self.changed
        )
        self.hand = HandOff(self.slots, storage, min(setup.poll, setup.lease / 2))
        self.tends = not confined(storage)
        asks = ClaimBuilder(
            app.tasks,
            app.own,
            queues,
            setup.lease,
            self.slots,
            self.batches,
            self.election,
            self.tasks,
            self.hand,
            self.tends,
        )
        runner = Runner(
            app.layers,
            app.on_error,
            app.chance,
            app.now,
            app.sizes.result,
            pools.threads,
            pools.processes,
            self.batches,
            app.client,
            self.slots.troubles,
        )
        ender = WorkflowFinisher(storage, app.tasks, app.reducers, app.sizes.result)
        dispatchers = 1 if setup.concurrency == 1 or setup.ordered or isinstance(storage, OneByOne) else PUMPS
        spare = isinstance(storage, DearTrips) and setup.concurrency <= storage.one_trip_up_to
        share = setup.concurrency if spare else -(-setup.concurrency // dispatchers)
        self.upkeep = Upkeep(
            self.slots,
            storage,
            app.emitter,
            list(queues),
            setup.lease,
            self.tasks,
            outage.answered,
            self.batches.gathering,
        )
        home = WorkerDurableBackend(self.slots, storage, self.upkeep, app, pools.threads, outage)
        self.dispatchers = [
            Dispatcher(
                number,
                share,
                spare,
                HandOff(self.slots) if number else self.hand,
                self.slots,
                self.timers,
                storage,
                app.tasks,
                asks,
                runner,
                app.emitter,
                setup.poll,
                setup.accept,
                outage,
                app.results,
                app.own,
                self.upkeep.lost,
                home,
                ender,
                self.batches,
            )
            for number in range(dispatchers)
        ]
        self.loops: list[asyncio.Task[None]] = []
        self.beside: list[asyncio.Task[None]] = []
        self.hurry = asyncio.Event()  # a second signal: no grace
        self.unfollow: Callable[[], None] = lambda: None

    async def declared(self) -> None:
        """Store what code declares once more where the storage has lost it. Looks after an outage, after a job of this
        worker was lost, and now and then."""
        self.upkeep.lost.doubted = self.outage.over.set
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
        self.upkeep.outlasts_a_beat(seconds)

    def start(self) -> None:
        upkeep, throttle = self.upkeep, self.setup.throttle
        self.unfollow = job_log.follow(self.app.emitter, self.setup.name)
        self.slots.claiming = bool(self.queues)
        if throttle is not None:
            self.slots.pause = upkeep.UNASKED
        self.loops = [asyncio.Task(self.supervise("pump", dispatcher.run)) for dispatcher in self.dispatchers]
        sides: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "beat": upkeep.beat,
            "listen": upkeep.listen,
        }
        if self.tends:
            sides["prune"] = lambda: upkeep.prune(self.election.tends)
        if self.queues and self.tends:
            sides["declared"] = self.declared
        if self.setup.role is not None and self.tends:
            sides["lead"] = lambda: upkeep.election(self.election)
        if throttle is not None:
            sides["throttle"] = lambda: upkeep.throttle(throttle)
        sides |= self.extras()
        if isinstance(throttle, AIMD):
            throttle.attach(self.app.emitter)
        self.beside = [asyncio.Task(self.supervise(name, side)) for name, side in sides.items()]

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

    def presence(self) -> Presence:
        return self.upkeep.presence()

    def changed(self) -> None:
        """Another worker leads: there may be other work for us."""
        self.slots.hinted = True
        self.slots.wake.set()

    def extras(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that only some workers have."""
        setup, found = self.setup, dict[str, Callable[[], Coroutine[Any, Any, None]]]()
        if setup.on_backlog is not None:
            found["backlog"] = BacklogMonitor(
                setup.on_backlog,
                setup.backlog_after,
                setup.backlog_every,
                self.slots,
                self.storage,
                self.queues,
                self.outage.answered,
            ).run
        if setup.redrive is not None:
            found["redrive"] = Redriver(
                setup.redrive, self.slots, self.storage, self.queues, self.redriven, self.app.now, self.outage.answered
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
        room = min(self.slots.free, len(ids))
        if room <= 0 or self.slots.stopping:
            return
        self.slots.free -= room
        self.slots.asking += 1
        tried: asyncio.Future[None] = self.loop.create_future()
        task = asyncio.Task(self.claim_ids(tuple(ids), room, tried))
        self.loops.append(task)
        task.add_done_callback(self.loops.remove)
        await tried

    async def claim_ids(self, ids: tuple[str, ...], room: int, tried: asyncio.Future[None]) -> None:
        ask = Claim(
            worker=self.slots.ticket(),
            limit=room,
            ids=ids,
            lease=self.setup.lease,
            tasks=self.tasks(),
            holds=tuple(self.slots.running),
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
            self.slots.asking -= 1
            self.slots.free += room - len(records or ())
            if records:
                self.dispatchers[0].start_all(records)
            self.slots.wake.set()
            _done(tried)

    def cancel_runs(self) -> None:
        for run in list(self.slots.running.values()):
            run.stop("stop")

    def claim_no_more(self) -> None:
        """Start nothing from now on, and tell what runs that it should end."""
        slots = self.slots
        slots.stopping, slots.claiming = True, False
        slots.wake.set()
        for run in list(slots.running.values()):
            if self.batches.waits(run.context):
                run.stop("stop")  # nobody has begun it, so another worker may
            else:
                run.tell()

    async def stop(self, grace: float) -> None:
        """Wait for the running jobs, hand back what does not end, and end the loops. `claim_no_more` comes first."""
        slots = self.slots
        self.outage.give_up_at = self.loop.time() + grace + self.setup.lease
        try:
            await self._let_end(grace)
        finally:  # also where the event loop ends now: a loop left behind would renew leases for ever
            for task in (*self.loops, *self.beside):
                task.cancel()
            self.hand.close()
            self.unfollow()
            if isinstance(self.setup.throttle, AIMD):
                self.setup.throttle.detach(self.app.emitter)
            self.timers.close()
            await asyncio.gather(*self.loops, *self.beside, return_exceptions=True)
        if slots.running:
            names = ", ".join(sorted({run.record.job.task for run in slots.running.values()}))
            log.warning(
                "worker %s stops while %d jobs still run (%s); their leases will run out",
                slots.name,
                len(slots.running),
                names,
            )
        try:
            async with asyncio.timeout(HURRY if self.hurry.is_set() else None):
                await self.election.leave()
                await self.upkeep.beat_once(gone=True)
        except (StorageError, TimeoutError):
            log.info("worker %s could not say good-bye; it is forgotten after its lease", slots.name)
        await self.upkeep.lost.settled()

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
