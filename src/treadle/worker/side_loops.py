"""The loops of a worker except its dispatchers: heartbeats, notifications, maintenance, and loops that its options
add."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from treadle.storage import with_blobs
from treadle.worker.backlog import BacklogMonitor
from treadle.worker.collector import Collector
from treadle.worker.declared import restore_declared
from treadle.worker.listener import Listener
from treadle.worker.loop_lag import watch_lag
from treadle.worker.metrics_folder import MetricsFolder
from treadle.worker.parts import WorkerParts
from treadle.worker.pruner import Pruner
from treadle.worker.redrive import Redriver
from treadle.worker.throttler import Throttler
from treadle.worker.turns import Turns

Loops = dict[str, Callable[[], Coroutine[Any, Any, None]]]


def side_loops(parts: WorkerParts) -> Loops:
    """All loops except the dispatchers, by their names in StorageOutage."""
    answered, throttle = parts.outage.answered, parts.config.throttle
    listener = Listener(parts.state, parts.storage, parts.queues)
    loops: Loops = {
        "beat": lambda: parts.heartbeat.run(answered),
        "listen": lambda: listener.run(answered),
    }
    if parts.maintains:
        pruner = Pruner(parts.storage, parts.election.is_leader)
        loops["prune"] = lambda: pruner.run(answered)
        folder = MetricsFolder(parts.storage, parts.election.is_leader)
        loops["fold"] = lambda: folder.run(answered)
        if blobs := with_blobs(parts.storage):
            collector = Collector(blobs, parts.election.is_leader)
            loops["collect"] = lambda: collector.run(answered)
        if parts.queues:
            loops["declared"] = partial(restore_declared, parts.app, parts.config.name, parts.outage)
        if parts.config.role is not None:
            loops["lead"] = lambda: parts.election.run(parts.heartbeat.calls, answered)
    relay = parts.app.relay if parts.config.relay else None
    if relay is not None:
        loops["relay"] = lambda: relay.run(lambda: answered("relay"), parts.election.is_leader)
    if parts.app.counts is not None:
        loops["lag"] = partial(watch_lag, parts.app.counts.lagged)
    if parts.metrics is not None and parts.config.metrics:
        loops["metrics"] = partial(parts.metrics.run, parts.storage, parts.heartbeat.calls)
    if throttle is not None:
        throttler = Throttler(parts.state, throttle)
        loops["throttle"] = lambda: throttler.run(answered)
    return loops | _optional(parts)


def _optional(parts: WorkerParts) -> Loops:
    """The loops of optional settings."""
    config, loops = parts.config, Loops()
    if config.on_backlog is not None:
        loops["backlog"] = BacklogMonitor(
            config.on_backlog,
            config.backlog_after,
            config.backlog_every,
            parts.state,
            parts.storage,
            parts.queues,
            parts.outage.answered,
        ).run
    if parts.capacity is not None:
        loops["turns"] = Turns(parts.capacity, parts.storage, parts.queues, parts.outage.answered).run
    if config.redrive is not None:
        loops["redrive"] = Redriver(
            config.redrive,
            parts.state,
            parts.storage,
            parts.queues,
            parts.tasks_to_redrive,
            parts.app.now,
            parts.outage.answered,
        ).run
    return loops
