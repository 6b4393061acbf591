"""The loops of a worker except its dispatchers: heartbeats, notifications, maintenance, and loops that its options
add."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from treadle.concurrency.uncut import UncutCalls
from treadle.storage.capabilities import with_blobs
from treadle.storage.contract import Storage
from treadle.worker.backlog import BacklogMonitor
from treadle.worker.capacity import Capacity
from treadle.worker.collector import Collector
from treadle.worker.config import WorkerConfig
from treadle.worker.declared import restore_declared
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.job_metrics import JobMetrics
from treadle.worker.leader import LeaderElection
from treadle.worker.listener import Listener
from treadle.worker.loop_lag import watch_lag
from treadle.worker.metrics_folder import MetricsFolder
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import WorkerHost
from treadle.worker.pruner import Pruner
from treadle.worker.redrive import Redriver
from treadle.worker.state import WorkerState
from treadle.worker.throttler import Throttler
from treadle.worker.turns import Turns

Loops = dict[str, Callable[[], Coroutine[Any, Any, None]]]


class Session(Protocol):
    """The parts of a `WorkerSession` that its loops use."""

    app: WorkerHost
    config: WorkerConfig
    state: WorkerState
    storage: Storage
    queues: dict[str, int]
    outage: StorageOutage
    heartbeat: Heartbeat
    calls: UncutCalls
    election: LeaderElection
    capacity: Capacity | None
    metrics: JobMetrics | None
    maintains: bool

    def tasks_to_redrive(self) -> list[str]: ...


def side_loops(session: Session) -> Loops:
    """All loops except the dispatchers, by their names in StorageOutage."""
    answered, throttle = session.outage.answered, session.config.throttle
    listener = Listener(session.state, session.storage, session.queues)
    loops: Loops = {
        "beat": lambda: session.heartbeat.run(session.calls, answered),
        "listen": lambda: listener.run(answered),
    }
    if session.maintains:
        pruner = Pruner(session.storage, session.election.is_leader)
        loops["prune"] = lambda: pruner.run(answered)
        folder = MetricsFolder(session.storage, session.election.is_leader)
        loops["fold"] = lambda: folder.run(answered)
        if blobs := with_blobs(session.storage):
            collector = Collector(blobs, session.election.is_leader)
            loops["collect"] = lambda: collector.run(answered)
        if session.queues:
            loops["declared"] = partial(restore_declared, session.app, session.config.name, session.outage)
        if session.config.role is not None:
            loops["lead"] = lambda: session.election.run(session.calls, answered)
    relay = session.app.relay if session.config.relay else None
    if relay is not None:
        loops["relay"] = lambda: relay.run(lambda: answered("relay"), session.election.is_leader)
    if session.app.counts is not None:
        loops["lag"] = partial(watch_lag, session.app.counts.lagged)
    if session.metrics is not None and session.config.metrics:
        loops["metrics"] = partial(session.metrics.run, session.storage, session.calls)
    if throttle is not None:
        throttler = Throttler(session.state, throttle, session.heartbeat.outlasted_by)
        loops["throttle"] = lambda: throttler.run(answered)
    return loops | _optional(session)


def _optional(session: Session) -> Loops:
    """The loops of optional settings."""
    config, loops = session.config, Loops()
    if config.on_backlog is not None:
        loops["backlog"] = BacklogMonitor(
            config.on_backlog,
            config.backlog_after,
            config.backlog_every,
            session.state,
            session.storage,
            session.queues,
            session.outage.answered,
        ).run
    if session.capacity is not None:
        loops["turns"] = Turns(session.capacity, session.storage, session.queues, session.outage.answered).run
    if config.redrive is not None:
        loops["redrive"] = Redriver(
            config.redrive,
            session.state,
            session.storage,
            session.queues,
            session.tasks_to_redrive,
            session.app.now,
            session.outage.answered,
        ).run
    return loops
