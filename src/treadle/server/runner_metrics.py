"""Counts the jobs of runners in other languages, which measure nothing themselves: the server settles their reports.
It also calls `Middleware.reported` of the server's app.

A worker in Python that uses the server sends outcomes that it has judged, and stores its own metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from treadle.concurrency.uncut import UncutCalls
from treadle.core import defaults
from treadle.core.clock import Clock
from treadle.core.model import Outcome, Record
from treadle.execution import middleware
from treadle.producer.client import Client
from treadle.storage.contract import Storage
from treadle.worker.config import worker_name
from treadle.worker.job_events import name_of, run_outcome
from treadle.worker.job_metrics import JobMetrics


class MetricsHost(Protocol):
    """The attributes of the app's core that `RunnerMetrics` uses."""

    @property
    def storage(self) -> Storage: ...
    @property
    def now(self) -> Clock: ...
    @property
    def client(self) -> Client: ...
    @property
    def when_closing(self) -> list[Callable[[], Awaitable[None]]]: ...


class RunnerMetrics:
    """One for each protocol of a server process. It stores its rows some seconds after a job was counted, and when the
    app is closed."""

    def __init__(self, core: MetricsHost) -> None:
        self._core = core
        self._metrics = JobMetrics(f"server {worker_name()}", core.now)
        self._storing: asyncio.Task[None] | None = None
        self._calls = UncutCalls()
        core.when_closing.append(self._close)

    def settled(self, row: Record, outcome: Outcome) -> None:
        """The storage has applied this outcome to a job that a runner has run; `row`: the job as it ran."""
        self._metrics.reported(row, outcome)
        if layers := middleware.overrides(self._core.client.layers, "reported"):
            seconds = max(0.0, self._core.now() - row.started_at) if row.started_at is not None else 0.0
            name = name_of(row, outcome)
            error = None if name in ("succeeded", "deferred", "waiting") else outcome.error
            middleware.report_remote(layers, row, run_outcome(name, outcome, seconds), error)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_soon())

    async def _store_soon(self) -> None:
        stored = False
        while not stored:
            await asyncio.sleep(defaults.METRICS_EVERY)
            stored = await self._calls.make(self._metrics.store(self._core.storage))

    async def _close(self) -> None:
        storing, self._storing = self._storing, None
        if storing is None:
            return
        if storing.get_loop() is asyncio.get_running_loop():  # otherwise that loop has ended, and the task with it
            storing.cancel()
            await asyncio.wait([storing])
            await self._calls.ended()
        await self._metrics.store(self._core.storage)
