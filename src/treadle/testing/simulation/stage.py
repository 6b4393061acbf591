"""Replaces the app's storage, random numbers, threads and logs for the time of a simulation, and restores them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from treadle.admin import EmptiedWatch
from treadle.admin.known_names import Names
from treadle.app.core import injectors
from treadle.app.storage_choice import StorageChoice
from treadle.concurrency.threads import Answer, Threads
from treadle.core.errors import BadOption
from treadle.core.events import Event
from treadle.execution.middleware import Middleware
from treadle.producer import Batcher, Sender
from treadle.resources import AppResources, Injector, Life, Overrides
from treadle.testing.history import Recorder
from treadle.testing.simulation.loop import ACTOR, Actor, SimulatedLoop
from treadle.worker import InlineWorker, outcome

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.testing.payloads import TextsInTest
    from treadle.testing.simulation.network import Network


class CalledAtOnce:
    """Replaces the worker's thread pool: plain functions run on the loop and take no virtual time."""

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer = outcome(call)
        if isinstance(answer[1], KeyboardInterrupt):
            raise answer[1]  # it is meant for the program that simulates
        future.set_result(answer)
        return future

    def close(self) -> None:
        """Nothing to close."""


class OfEach:
    """One batcher per process: calls that die with one process must not block those of others."""

    def __init__(self, make: Callable[[], Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]]) -> None:
        self._make = make
        self._by_actor: dict[Actor | None, Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]] = {}

    def __call__(self, items: Sequence[Any]) -> Awaitable[Sequence[Any]]:
        actor = ACTOR.get()
        if actor not in self._by_actor:
            self._by_actor[actor] = self._make()
        return self._by_actor[actor](items)


class ResourcesOfEach(AppResources):
    """The resources of each process: what one has opened is gone when it is killed, and no other process uses it."""

    def __init__(self, declared: AppResources, overrides: Overrides) -> None:
        super().__init__()
        self.lifespan, self.overrides = declared.lifespan, {**declared.overrides, **overrides}
        self._by_actor: dict[Actor | None, AppResources] = {}

    def _own(self) -> AppResources:
        actor = ACTOR.get()
        if actor not in self._by_actor:
            self._by_actor[actor] = self.for_test({})
        return self._by_actor[actor]

    async def enter(self, injectors: Iterable[Injector] = (), threads: Threads | None = None) -> Life:
        return await self._own().enter(injectors, threads)

    async def leave(self, life: Life, hurry: asyncio.Event | None = None) -> BaseException | None:
        return await self._own().leave(life, hurry)


@dataclass(frozen=True)
class Stage:
    """The parts of one run that replace those of the app: the storage behind its network, its clock, its encrypted and
    offloaded texts (None: the app has none), providers, and further middleware."""

    network: Network
    clock: Callable[[], float]
    texts: TextsInTest | None
    overrides: Overrides
    layers: Sequence[Middleware] = ()


@contextmanager
def borrowed(
    core: AppCore, stage: Stage, loop: SimulatedLoop, rng: random.Random, failed: Callable[[BaseException], None]
) -> Iterator[None]:
    """Connect the app of this core to the network of a stage, with ids that count up. The app is restored afterwards.
    Raises BadOption for overrides that no task uses."""
    clock = stage.clock
    core.resources.check(stage.overrides, injectors(core))
    for task in core.tasks.values():
        if task.kind == "process":
            raise BadOption("kind", f'{task.name} has kind="process", which a simulation does not support')
    ids, client = count(1), core.client
    recorder = Recorder(lambda: (ACTOR.get() or loop.root).history, core.tasks)

    def on_error(event: Event) -> None:
        if isinstance(event.error, BaseException):
            failed(event.error)

    listeners = [*recorder.listeners, ("worker.error", on_error)]
    with ExitStack() as back:

        def change(target: object, name: str, value: Any) -> None:
            back.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)

        for name, value in {
            "choice": StorageChoice(storage=stage.network, clock=clock, wrap=stage.texts),
            "now": clock,
            "random": rng.random,
            "inline": InlineWorker(core),
            "resources": ResourcesOfEach(core.resources, stage.overrides),
        }.items():
            change(core, name, value)
        change(core, "life", core.new_life(core.choice))
        change(core, "emptied", EmptiedWatch(core.opened, clock))
        change(client, "at_hand", core.life.at_hand)
        change(client, "_share", OfEach(lambda: Sender(client._write)))
        change(client, "_get", OfEach(lambda: Batcher(client._look, 1_000)))
        for name in ("moved", "run_now"):
            change(client, name, None)
        names = Names(core.opened, core.tasks)  # names cached for another storage would change the random draws
        change(core.limits, "names", names)
        change(core.jobs, "names", names)
        change(core.maker, "new_id", lambda: f"job-{next(ids):06d}")
        change(core.maker, "now", clock)
        change(core.jobs, "_now", clock)
        for layer in (recorder, *stage.layers):
            core.layers.append(layer)
            back.callback(core.layers.remove, layer)
        for name, listener in listeners:
            core.emitter.on(name, listener)
            back.callback(core.emitter.off, name, listener)
        yield


@contextmanager
def seeded(loop: SimulatedLoop, rng: random.Random) -> Iterator[None]:
    """In this thread, random numbers follow the seed, thread pools run calls at once, and `perf_counter` is virtual.
    Other threads keep the real urandom, pools and clock."""
    here, before = threading.get_ident(), random.getstate()
    urandom, submit, perf_counter = os.urandom, ThreadPoolExecutor.submit, time.perf_counter

    def noise(size: int, /) -> bytes:
        return rng.randbytes(size) if threading.get_ident() == here else urandom(size)

    def at_once(pool: ThreadPoolExecutor, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        if threading.get_ident() != here:
            return submit(pool, call, *args, **named)
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **named))
        except BaseException as error:
            future.set_exception(error)
        return future

    def elapsed() -> float:
        return loop.now if threading.get_ident() == here else perf_counter()

    random.seed(rng.random())
    vars_of: dict[Any, tuple[str, Any]] = {
        os: ("urandom", noise),
        ThreadPoolExecutor: ("submit", at_once),
        time: ("perf_counter", elapsed),
    }
    with ExitStack() as back:
        back.callback(random.setstate, before)
        for target, (name, value) in vars_of.items():
            back.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)
        yield


@contextmanager
def alone() -> Iterator[None]:
    """Silence the log, because outages are expected. An event loop that runs in this thread is suspended with its task:
    from CPython 3.14 on, a thread has one current task."""
    log, outer = logging.getLogger("treadle"), asyncio._get_running_loop()
    task = asyncio.current_task() if outer is not None else None
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    if outer is not None and task is not None:
        asyncio.tasks._leave_task(outer, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if outer is not None and task is not None:
            asyncio.tasks._enter_task(outer, task)
        log.setLevel(level)


@contextmanager
def uncollected() -> Iterator[None]:
    """Run the garbage collector after the block and not in it. Within a run, the moment of a collection would depend on
    the process, and finalising an object may change the run. It also took 8 % of the time of a seed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(1)
