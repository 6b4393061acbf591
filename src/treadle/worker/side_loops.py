"""The loops of a worker except its dispatchers: heartbeats, notifications, maintenance, and loops that its options
add."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from treadle.core import defaults
from treadle.storage import with_blobs
from treadle.storage.contract import Storage
from treadle.worker.backlog import BacklogMonitor
from treadle.worker.capacity import Turns
from treadle.worker.maintenance import Collector, MetricsFolder, Pruner
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import WorkerHost, WorkerParts
from treadle.worker.redrive import Redriver
from treadle.worker.state import WorkerState

log = logging.getLogger("treadle")

EVERY: Final = 0.5  # s between two samples of the lag; one costs 10 us


async def restore_declared(app: WorkerHost, worker: str, outage: StorageOutage) -> None:
    """Store the declared limits and schedules again if the storage has lost them. Checks after an outage, after a job
    of this worker was lost, and every `defaults.DECLARED_EVERY` s."""
    while True:
        outage.over.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(defaults.DECLARED_EVERY):
                await outage.over.wait()
        if await app.prepare_again():
            log.warning(
                "worker %s: the storage had lost the declared limits and schedules; they were stored again", worker
            )
        outage.answered("declared")
        await asyncio.sleep(min(defaults.DECLARED_LEAST, defaults.DECLARED_EVERY))  # once for many lost jobs


async def watch_lag(lagged: Callable[[float], None]) -> None:
    """Sample how late the event loop runs its timers: what a job that blocks it costs all others."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY
        await asyncio.sleep(EVERY)
        lagged(max(0.0, loop.time() - due))


class Listener:
    """Waits for notifications of the storage: a queue has new jobs, a running job was settled from outside. A lost one
    delays a job until the next poll, and loses none."""

    def __init__(self, state: WorkerState, storage: Storage, queues: Iterable[str]) -> None:
        self._state, self._storage = state, storage
        self._own_topic = f"worker:{state.name}"
        names = tuple(dict.fromkeys(queues))
        system = (defaults.SYSTEM_QUEUE,) if names and not storage.capabilities.queues else ()
        self._topics = [self._own_topic, *(f"queue:{name}" for name in (*names, *system))]
        self._timeout = defaults.WATCH

    async def run(self, answered: Callable[[str], None]) -> None:
        state = self._state
        while True:
            timeout, self._timeout = self._timeout, 0.0  # after a failure, only check that it answers
            topics = await self._storage.watch(self._topics, timeout)
            self._timeout = defaults.WATCH
            answered("listen")
            if self._own_topic in topics:
                state.heartbeat_now.set()
            if any(topic.startswith("queue:") for topic in topics):
                state.demand.notify()


class Throttler:
    """Calls the user's throttle, and pauses the claims for the seconds that it returns."""

    UNASKED = 1e9  # s of pause before the first call of the throttle

    def __init__(self, state: WorkerState, throttle: Callable[[], Awaitable[Any]]) -> None:
        self._state, self._throttle = state, throttle

    async def run(self, answered: Callable[[str], None]) -> None:
        state = self._state
        while True:
            try:
                seconds = min(max(0.0, float(await self._throttle() or 0.0)), defaults.MAX_DELAY)
                answered("throttle")
            except BaseException:
                state.pause_for(0.0)  # a broken throttle pauses nothing
                raise
            state.pause_for(seconds)
            state.outlasted_by(seconds)
            await asyncio.sleep(state.pause or defaults.THROTTLE_EVERY)


Loops = dict[str, Callable[[], Coroutine[Any, Any, None]]]


def side_loops(parts: WorkerParts) -> Loops:
    """All loops except the dispatchers, by their names in StorageOutage."""
    config, storage, answered, calls = parts.config, parts.storage, parts.outage.answered, parts.heartbeat.calls
    leads = parts.election.is_leader
    loops: Loops = {
        "beat": partial(parts.heartbeat.run, answered),
        "listen": partial(Listener(parts.state, storage, parts.queues).run, answered),
    }
    if parts.maintains:
        loops["prune"] = partial(Pruner(storage, leads).run, answered)
        loops["fold"] = partial(MetricsFolder(storage, leads).run, answered)
        if blobs := with_blobs(storage):
            loops["collect"] = partial(Collector(blobs, leads).run, answered)
        if parts.queues:
            loops["declared"] = partial(restore_declared, parts.app, config.name, parts.outage)
        if config.role is not None:
            loops["lead"] = partial(parts.election.run, calls, answered)
    if config.relay and parts.app.relay is not None:
        loops["relay"] = partial(parts.app.relay.run, lambda: answered("relay"), leads)
    if parts.app.counts is not None:
        loops["lag"] = partial(watch_lag, parts.app.counts.lagged)
    if parts.metrics is not None and config.metrics:
        loops["metrics"] = partial(parts.metrics.run, storage, calls)
    if config.throttle is not None:
        loops["throttle"] = partial(Throttler(parts.state, config.throttle).run, answered)
    if config.on_backlog is not None:
        after, every = config.backlog_after, config.backlog_every
        monitor = BacklogMonitor(config.on_backlog, after, every, parts.state, storage, parts.queues, answered)
        loops["backlog"] = monitor.run
    if parts.capacity is not None:
        loops["turns"] = Turns(parts.capacity, storage, parts.queues, answered).run
    if config.redrive is not None:
        tasks, now = parts.tasks_to_redrive, parts.app.now
        loops["redrive"] = Redriver(config.redrive, parts.state, storage, parts.queues, tasks, now, answered).run
    return loops
