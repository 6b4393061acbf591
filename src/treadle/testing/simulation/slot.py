"""The processes of a fleet's workers, and the faults that hit them."""

from __future__ import annotations

import asyncio
from contextvars import Context
from random import Random
from typing import Any, NoReturn, Protocol

from treadle.core.errors import BadOption, StorageUnavailable
from treadle.testing.simulation.faults import Fault
from treadle.testing.simulation.loop import ACTOR, Actor, SimulatedLoop
from treadle.testing.simulation.network import Line, Network
from treadle.testing.simulation.stage import CalledAtOnce
from treadle.worker import Census, Worker

GRACE = 1.0  # seconds that jobs get when a worker stops
BY_STEPS = ("kill", "stop", "stall", "cut")  # faults that happen after this many steps of a worker


async def crash() -> NoReturn:
    """Kill the worker process that runs this job, as SIGKILL would; another one starts in its place.

    Raises BadOption outside a job of a simulation.
    """
    actor = ACTOR.get()
    if actor is None or actor.on_crash is None:
        raise BadOption("crash", "expected a call by a job that a simulated worker runs")
    actor.loop.call_soon(actor.on_crash)
    await actor.loop.create_future()
    raise AssertionError


class Fleet(Protocol):
    """The simulation, as its workers see it."""

    app: Any
    case: Any
    _fallen: int
    _faults: Random
    _loop: SimulatedLoop
    _network: Network
    _settings: Any

    def _failed(self, error: BaseException) -> None: ...
    def _line_of(self, who: int) -> Line: ...


class Slot:
    """One worker number. The faults of this number hit whichever process currently runs under it."""

    def __init__(self, simulation: Fleet, number: int) -> None:
        self._sim, self.number = simulation, number
        self._loop, self._line = simulation._loop, simulation._line_of(number)
        self._faults = sorted(
            (fault for fault in simulation.case.faults if fault.who == number and fault.kind in BY_STEPS),
            key=lambda each: -each.at,
        )
        self.steps = self._started = 0
        self._worker: Worker | None = None
        self._actor: Actor | None = None
        self._over = False

    def boot(self) -> None:
        """Start a new process with a new worker."""
        if self._over:
            return
        self._started += 1
        actor = self._actor = self._loop.actor(f"worker-{self.number}.{self._started}")
        self._sim._network.connect(actor, self._line)
        if self._faults:
            actor.watch = self._step
        settings = self._sim._settings
        worker = self._worker = Worker(
            self._sim.app,
            concurrency=settings.concurrency,
            lease=settings.lease,
            name=actor.name,
            grace=GRACE,
            **settings.options,
        )
        worker._core.pools.lend(CalledAtOnce())
        worker._core.census = Census()  # each worker is a process of its own
        actor.on_crash = lambda: self._kill(actor)
        place = {"labels": worker._core.config.labels or {}, "resources": worker._core.config.resources or {}}
        actor.history.add("worker", facts=place)
        starting = self._loop.start(actor, worker.start())
        starting.add_done_callback(lambda done: self._begun(actor, done))

    def _begun(self, actor: Actor, starting: asyncio.Task[None]) -> None:
        """A worker whose resources need the storage exits if that fails, and another one starts. Other errors are the
        program's."""
        error = None if starting.cancelled() else starting.exception()
        if isinstance(error, StorageUnavailable) or (error and isinstance(error.__cause__, StorageUnavailable)):
            self._loop.kill(actor)
            if actor is self._actor:
                self._again()
        elif error is not None:
            self._sim._failed(error)

    def _step(self, actor: Actor) -> None:
        self.steps += 1
        while actor is self._actor and self._faults and self._faults[-1].at <= self.steps:
            self._fall(actor, self._faults.pop())

    def _fall(self, actor: Actor, fault: Fault) -> None:
        self._sim._fallen += 1
        if fault.kind == "kill":
            self._kill(actor)
        elif fault.kind == "stall":
            self._loop.stall(actor, fault.seconds)
        elif fault.kind == "cut":
            self._line.cut_until = self._loop.now + fault.seconds
        elif self._worker is not None:
            self._loop.start(actor, self._stop(actor, self._worker))

    def _kill(self, actor: Actor) -> None:
        if actor is self._actor:
            self._loop.kill(actor)
            self._again()

    async def _stop(self, actor: Actor, worker: Worker) -> None:
        await worker.stop()
        if actor is self._actor:
            self._loop.kill(actor)
            self._again()

    def _again(self) -> None:
        self._actor = None
        self._loop.call_later(self._sim._faults.uniform(0, self._sim._settings.lease), self.boot, context=Context())

    def heal(self) -> None:
        """Drop the remaining faults."""
        self._faults.clear()
        self._line.faults.clear()
        self._line.cut_until = 0.0
        if self._actor is not None:
            self._actor.watch = None

    def end(self) -> None:
        """Stop the process and start no other."""
        self._over = True
        if self._actor is not None:
            self._loop.remove(self._actor)
