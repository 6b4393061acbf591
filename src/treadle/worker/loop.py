"""The worker: its settings, its loops, how it starts and how it stops.

Without it there would be pumps and runners, and nobody to end them decently.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from treadle import defaults, middleware
from treadle.batch import BatchTask
from treadle.compose.plan import FLOW
from treadle.compose.reduce import Reducer
from treadle.ending import Ender
from treadle.errors import BadOption, StorageError, StorageFull, StorageUnavailable, UnknownTask
from treadle.events import Emitter, Event
from treadle.judge import OnError
from treadle.model import Claim, Presence, Record
from treadle.options import Sizes, name_of
from treadle.retry import DEFAULT, Retry, seconds
from treadle.runner import AnyTask, OwnTask, Runner
from treadle.storage.contract import Storage
from treadle.throttle import AIMD
from treadle.worker.backlog import Alarm, Backlog
from treadle.worker.batches import Batches
from treadle.worker.home import DurableHome
from treadle.worker.keeper import Keeper
from treadle.worker.lead import Lead, Role, Tended, role_of
from treadle.worker.outage import Outage
from treadle.worker.pump import Pump
from treadle.worker.redrive import Redrive, Redriver
from treadle.worker.signals import Signals
from treadle.worker.slots import Slots, Timers
from treadle.worker.threads import Threads

log = logging.getLogger("treadle")

RECOVERY = Retry(base=0.1, max=10.0)
LISTENERS = 5.0  # s a stopping worker waits for async listeners
PUMPS = 2  # one trip under way while the other half runs: +50 % on a network storage, nothing lost on SQLite


class Host(Protocol):
    """What a worker needs of its app."""

    tasks: dict[str, AnyTask]
    own: dict[str, OwnTask]
    emitter: Emitter
    layers: list[middleware.Middleware]
    on_error: OnError | None
    sizes: Sizes
    reducers: dict[str, Reducer]

    async def open(self) -> Storage: ...
    async def prepare(self) -> None: ...
    async def release(self) -> None: ...
    async def results(self, ids: Sequence[str]) -> list[Any]: ...
    def chance(self) -> float: ...
    def now(self) -> float: ...


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
                 `treadle.worker.lead`; None: this one does, whatever others do
    ordered      start jobs strictly in the order of the line: one claim at a time, not two that overlap
    recovery     how long to wait before trying again when the storage is away
    """

    def __init__(
        self, app: Host, queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = defaults.CONCURRENCY, *, tasks: Iterable[str | AnyTask] | None = None,
        accept: Callable[[Record], Any] | None = None,
        throttle: Callable[[], Awaitable[Any]] | None = None, on_backlog: Callable[[Backlog], Any] | None = None,
        backlog_after: float | timedelta = defaults.BACKLOG_AFTER, backlog_every: float | timedelta | None = None,
        redrive: Redrive | None = None, grace: float | timedelta = defaults.GRACE,
        lease: float | timedelta = defaults.LEASE, poll: float | timedelta = defaults.POLL,
        recovery: Retry = RECOVERY, name: str | None = None, role: Role | None = None,
        ordered: bool = False,
    ) -> None:  # fmt: skip
        most: object = concurrency
        if isinstance(most, bool) or not isinstance(most, int) or concurrency < 1:
            raise BadOption("concurrency", f"expected 1 or more, found {concurrency!r}")
        self.app, self.concurrency = app, concurrency
        self.grace, self.lease, self.poll = seconds(grace, "grace"), seconds(lease, "lease"), seconds(poll, "poll")
        if not self.lease or not self.poll:
            raise BadOption("lease" if not self.lease else "poll", "expected more than 0 s")
        self.name = name_of(name, "name") if name else f"{platform.node()}:{os.getpid()}:{os.urandom(3).hex()}"
        self._asked_queues = _weights(queues)
        self._asked_tasks = None if tasks is None else [task if isinstance(task, str) else task.name for task in tasks]
        self.role, self.ordered = role_of(role), ordered
        self._accept, self._throttle, self._recovery = accept, throttle, recovery.over(DEFAULT)
        self._on_backlog, self._backlog_after = on_backlog, seconds(backlog_after, "backlog_after")
        self._backlog_every = None if backlog_every is None else seconds(backlog_every, "backlog_every")
        if not self._backlog_after:
            raise BadOption("backlog_after", "expected more than 0 s")
        rule: object = redrive
        if rule is not None and not isinstance(rule, Redrive):
            raise BadOption("redrive", f"expected Redrive(...), found {redrive!r}")
        self._redrive = redrive
        self.patient = True  # whether items of a batch wait for others; a test that drains does not
        self._threads: Threads | None = None
        self._processes: Any = None
        self._state: _Running | None = None
        self._stopped: asyncio.Event | None = None  # while it stops: set when it has

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
        UnknownTask, and what opening raises when waiting would not help (BadUrl, SchemaTooNew, NotADatabase).
        """
        if self._state is not None:
            raise BadOption("worker", "it runs already")
        for name in self._asked_tasks or ():
            if name not in self.app.tasks:
                raise UnknownTask(name, tuple(self.app.tasks))
        outage = Outage(self.name, self._recovery, self.app.chance, self._tell)
        storage = await self._open(outage)
        self._state = _Running(self, storage, outage)
        self._state.start()
        self._tell("worker.started")

    async def _open(self, outage: Outage) -> Storage:
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
            if self.queues():
                await self.app.prepare()
        except BaseException:
            await self.app.release()
            raise
        return storage

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT: the first stops decently, the second at once."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            asked.set()
            if signals > 1 and self._state is not None:
                self._state.hurry.set()

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

    async def stop(self, grace: float | timedelta | None = None) -> None:
        """Claim no more, tell the functions that run, give them `grace` seconds to end, then cancel them and hand
        their jobs back, uncounted. Called again meanwhile, it waits for the first call."""
        state = self._state
        if state is None:
            return
        if self._stopped is not None:
            await self._stopped.wait()
            return
        stopped = self._stopped = asyncio.Event()
        self._tell("worker.stopping")
        try:
            await state.stop(self.grace if grace is None else seconds(grace, "grace"))
        finally:
            self._state = self._stopped = None
            if self._threads is not None:
                self._threads.close()
                self._threads = None
            if self._processes is not None:
                await self._processes.close()
                self._processes = None
            self._tell("worker.stopped")
            await self.app.emitter.settle(LISTENERS)
            await self.app.release()
            stopped.set()

    @property
    def running(self) -> Sequence[Record]:
        """The jobs that run here now."""
        return [] if self._state is None else [run.record for run in self._state.slots.running.values()]

    async def run_ids(self, ids: Sequence[str]) -> None:
        """Claim and start these jobs, those of them that may start now and that there is a slot for."""
        if self._state is not None:
            await self._state.run_ids(ids)

    # --- for its loops

    def _tell(self, name: str, error: BaseException | None = None) -> None:
        if self.app.emitter.wants(name):
            self.app.emitter.emit(Event(name=name, worker=self.name, error=error))

    def queues(self) -> dict[str, int]:
        if self._asked_queues is not None:
            return self._asked_queues
        asked = self._asked_tasks
        tasks = [task for name, task in self.app.tasks.items() if asked is None or name in asked]
        return dict.fromkeys((task.queue for task in tasks), 1) or {defaults.QUEUE: 1}

    def tasks(self) -> dict[str, tuple[int | None, float | None]]:
        names = self.app.tasks if self._asked_tasks is None else self._asked_tasks
        found: dict[str, tuple[int | None, float | None]] = {n: (None, self.app.tasks[n].lease) for n in names}
        found[FLOW] = None, None  # the roots of compositions: whoever serves their queue ends them
        return found | {own.name: (None, None) for own in self.app.own.values() if own.serves in (None, *names)}

    def threads(self) -> Threads:
        if self._threads is None:
            self._threads = Threads(self.concurrency, f"treadle-{self.name}")
        return self._threads

    def processes(self) -> Any:
        if self._processes is None:
            from treadle.worker.processes import ProcessPool

            self._processes = ProcessPool()
        return self._processes


class _Running:
    """One start of a worker: everything that is gone when it has stopped."""

    def __init__(self, worker: Worker, storage: Storage, outage: Outage) -> None:
        self.worker, self.storage, self.outage = worker, storage, outage
        app = worker.app
        self.loop = asyncio.get_running_loop()
        self.slots = Slots(worker.name, worker.concurrency)
        self.timers = Timers(self.loop)
        self.queues = worker.queues()
        self.batches = Batches(self.slots, worker.threads, worker.patient)
        self.lead = Lead(worker.role, self.slots.ticket(), storage, self.presence, self.tended, self.changed)
        self.asks = _Asks(worker, self.queues, self.slots, self.batches, self.lead, self.tasks)
        runner = Runner(
            app.layers, app.on_error, app.chance, app.now, app.sizes.result, worker.threads, worker.processes,
            self.batches,
        )  # fmt: skip
        ender = Ender(storage, app.tasks, app.reducers, app.sizes.result)
        pumps = 1 if worker.concurrency == 1 or worker.ordered else PUMPS
        share = -(-worker.concurrency // pumps)
        self.keeper = Keeper(
            self.slots, storage, app.emitter, list(self.queues), worker.lease, self.tasks, outage.answered
        )
        home = DurableHome(self.slots, storage, self.keeper, app, worker.threads, outage)
        self.pumps = [
            Pump(number, share, self.slots, self.timers, storage, app.tasks, self.asks, runner, app.emitter,
                 worker.poll, worker._accept, outage, app.results, app.own, self.keeper.lost, home,
                 ender, self.batches)
            for number in range(pumps)
        ]  # fmt: skip
        self.loops: list[asyncio.Task[None]] = []
        self.beside: list[asyncio.Task[None]] = []
        self.hurry = asyncio.Event()  # a second signal: no grace

    def start(self) -> None:
        keeper, throttle = self.keeper, self.worker._throttle
        self.slots.claiming = bool(self.queues)
        if throttle is not None:
            self.slots.pause = keeper.UNASKED
        self.loops = [asyncio.create_task(self.supervise("pump", pump.run)) for pump in self.pumps]
        sides: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "beat": keeper.beat, "listen": keeper.listen, "prune": lambda: keeper.prune(self.lead.tends),
        }  # fmt: skip
        if self.worker.role is not None:
            sides["lead"] = lambda: keeper.lead(self.lead)
        if throttle is not None:
            sides["throttle"] = lambda: keeper.throttle(throttle)
        sides |= self.extras()
        if isinstance(throttle, AIMD):
            throttle.attach(self.worker.app.emitter)
        self.beside = [asyncio.create_task(self.supervise(name, side)) for name, side in sides.items()]

    # --- what one worker does for all

    def tasks(self) -> dict[str, tuple[int | None, float | None]]:
        """What this worker claims now: the tending tasks only if that is its part."""
        own, lead = self.worker.app.own, self.lead
        return {name: room for name, room in self.worker.tasks().items()
                if name not in own or not own[name].tends or lead.ticks(name)}  # fmt: skip

    def tended(self) -> Tended:
        own, names = self.worker.app.own, tuple(self.worker.tasks())
        ticks = tuple(name for name in names if name in own and own[name].tends)
        return Tended(ticks, names if self.worker._redrive is not None else ())

    def presence(self) -> Presence:
        return self.keeper.presence()

    def changed(self) -> None:
        """Another worker leads: there may be other work for us."""
        self.slots.hinted = True
        self.slots.wake.set()

    def extras(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that only some workers have."""
        worker, found = self.worker, dict[str, Callable[[], Coroutine[Any, Any, None]]]()
        if worker._on_backlog is not None:
            found["backlog"] = Alarm(
                worker._on_backlog, worker._backlog_after, worker._backlog_every, self.slots, self.storage, self.queues
            ).run
        if worker._redrive is not None:
            found["redrive"] = Redriver(
                worker._redrive,
                self.slots,
                self.storage,
                self.queues,
                lambda: self.lead.redrives(worker.tasks()),
                worker.app.now,
            ).run
        return found

    async def supervise(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """An error in a loop is told, and the loop goes on after a while; healthy time makes it forget the error."""
        failures, retry = 0, self.worker._recovery
        while True:
            began = self.loop.time()
            try:
                return await loop()
            except Exception as error:
                failures = 1 if self.loop.time() - began > 60 else failures + 1
                if isinstance(error, StorageError):
                    await self.outage.failed(name, error)
                else:
                    log.exception("a loop of worker %s failed; it is started again", self.worker.name)
                    self.worker._tell("worker.error", error)
                    await asyncio.sleep(retry.delay(failures, self.worker.app.chance()))

    async def run_ids(self, ids: Sequence[str]) -> None:
        """Returns when it was tried once. A lost answer may have made them ours, so it is asked again, beside."""
        room = min(self.slots.free, len(ids))
        if room <= 0 or self.slots.stopping:
            return
        self.slots.free -= room
        self.slots.asking += 1
        tried: asyncio.Future[None] = self.loop.create_future()
        task = asyncio.create_task(self.claim_ids(tuple(ids), room, tried))
        self.loops.append(task)
        task.add_done_callback(self.loops.remove)
        await tried

    async def claim_ids(self, ids: tuple[str, ...], room: int, tried: asyncio.Future[None]) -> None:
        ask = Claim(
            worker=self.slots.ticket(), limit=room, ids=ids, lease=self.worker.lease, tasks=self.tasks(),
            holds=tuple(self.slots.running),
        )  # fmt: skip
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
                self.pumps[0].start_all(records)
            self.slots.wake.set()
            _done(tried)

    def cancel_runs(self) -> None:
        for run in list(self.slots.running.values()):
            run.stop("stop")

    async def stop(self, grace: float) -> None:
        slots = self.slots
        slots.stopping, slots.claiming = True, False
        slots.wake.set()
        for run in list(slots.running.values()):
            if self.batches.waits(run.context):
                run.stop("stop")  # nobody has begun it, so another worker may
            else:
                run.tell()
        self.outage.give_up_at = self.loop.time() + grace + self.worker.lease
        done = asyncio.gather(*self.loops, return_exceptions=True)
        hurry = asyncio.create_task(self.hurry.wait())
        either: list[asyncio.Future[Any]] = [done, hurry]
        await asyncio.wait(either, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self.cancel_runs()
            # Async functions end now. One in a thread ends when it returns: until then its slot is not given back.
            await asyncio.wait([done], timeout=1.0 if hurry.done() else max(1.0, min(grace, 5.0)))
        for task in (*self.loops, *self.beside, hurry):
            task.cancel()
        await asyncio.gather(done, hurry, *self.beside, return_exceptions=True)
        if slots.running:
            names = ", ".join(sorted({run.record.job.task for run in slots.running.values()}))
            log.warning("worker %s stops while %d jobs still run (%s); their leases will run out",
                        slots.name, len(slots.running), names)  # fmt: skip
        await self.lead.leave()
        try:
            await self.keeper.beat_once(gone=True)
        except StorageError:
            log.info("worker %s could not say good-bye; it is forgotten after its lease", slots.name)
        await self.keeper.lost.settled()
        if isinstance(self.worker._throttle, AIMD):
            self.worker._throttle.detach(self.worker.app.emitter)
        self.timers.close()


class _Asks:
    """Builds the claim for so many slots: each queue's share by weight, the first one another each time."""

    def __init__(
        self, worker: Worker, queues: dict[str, int], slots: Slots, batches: Batches, lead: Lead,
        tasks: Callable[[], dict[str, tuple[int | None, float | None]]],
    ) -> None:  # fmt: skip
        self._lead, self._claimable = lead, tasks
        self._worker, self._slots, self._batches, self._turn = worker, slots, batches, 0
        self._gathered: list[BatchTask[Any, Any]] = []
        self._queues = [(name, weight) for name, weight in queues.items() if name != defaults.OWN_QUEUE]
        self._total = sum(weight for _, weight in self._queues)
        self._tasks: dict[str, tuple[int | None, float | None]] = {}
        self._known, self._own_at = (-1, -1), 0.0
        self._own = ((defaults.OWN_QUEUE, 1),) if queues else ()
        self._always = defaults.OWN_QUEUE in queues

    def __call__(self, room: int, pump: int) -> Claim:
        app, now = self._worker.app, self._slots.loop.time()
        known_now = len(app.tasks) + len(app.own), self._lead.turn
        if self._known != known_now:
            self._tasks, self._known = self._claimable(), known_now
            known = map(app.tasks.get, self._tasks)
            self._gathered = [task for task in known if isinstance(task, BatchTask)]
        if len(self._queues) > 1:
            self._turn = (self._turn + 1) % len(self._queues)
            order = self._queues[self._turn :] + self._queues[: self._turn]
            queues = tuple((name, max(1, room * weight // self._total)) for name, weight in order)
        else:
            queues = tuple((name, room) for name, _ in self._queues)
        slots = self._slots  # our own is one more line to look at: not each time while jobs flow
        if self._always or slots.own or not slots.flowing or now >= self._own_at:
            queues, self._own_at, slots.own = self._own + queues, now + defaults.OWN_EVERY, False
        # Nor what another pump is settling: were that answer lost, it would find its job gone.
        holds = (*self._slots.running, *(run.record.job.id for run in self._slots.unsettled(but=pump)))
        tasks = self._tasks
        if self._gathered:
            # By one pump only: two claims under way at once would each fill the room there is.
            room_of = self._batches.room if pump == 0 else _none
            tasks = tasks | {task.name: (room_of(task), task.lease) for task in self._gathered}
        return Claim(worker="", queues=queues, tasks=tasks, limit=max(1, room), lease=self._worker.lease, holds=holds)


def _none(task: BatchTask[Any, Any]) -> int:
    return 0


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _weights(queues: Iterable[str] | Mapping[str, int] | None) -> dict[str, int] | None:
    if queues is None:
        return None
    if isinstance(queues, str):
        raise BadOption("queues", f"expected a list of names or {{name: weight}}, found the one text {queues!r}")
    found = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    for name, weight in found.items():
        name_of(name, "queues")
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise BadOption("queues", f"weight of {name!r}: expected 1 or more, found {weight!r}")
    return found
