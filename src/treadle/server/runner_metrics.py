"""Counts the jobs of runners in other languages, which measure nothing themselves: the server settles their reports.
It also calls `Middleware.reported` of the server's app.

A worker in Python that uses the server sends outcomes that it has judged, and stores its own metrics.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.concurrency.uncut import UncutCalls
from treadle.core import defaults
from treadle.core.errors import EventLoopError, StorageUnavailable
from treadle.core.model import Outcome, Record
from treadle.execution import middleware
from treadle.worker import JobMetrics, name_of, run_outcome, worker_name

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class RunnerMetrics:
    """The counts of one protocol of a server process. They are stored some seconds after a job was counted, and when
    the app is closed."""

    def __init__(self, core: AppCore) -> None:
        self._core = core
        self._metrics = JobMetrics(f"server {worker_name()}", core.now)
        self._storing: asyncio.Task[None] | None = None
        self._calls = UncutCalls()  # calls of the task above
        self._closing = False
        core.when_closing.append(self._close)

    def settled(self, row: Record, outcome: Outcome) -> None:
        """The storage has applied this outcome to a job that a runner has run; `row`: the job as it ran."""
        self._metrics.reported(row, outcome)
        if layers := middleware.overrides(self._core.client.layers, "reported"):
            seconds = max(0.0, self._core.now() - row.started_at) if row.started_at is not None else 0.0
            name = name_of(row, outcome)
            error = None if name in ("succeeded", "deferred", "waiting") else outcome.error
            middleware.report_remote(layers, row, run_outcome(name, outcome, seconds), error)
        if not self._closing and (
            self._storing is None or self._storing.done() or self._storing.get_loop().is_closed()
        ):
            self._calls = UncutCalls()  # without calls of a loop that has ended
            self._storing = asyncio.create_task(self._store_soon(self._calls))

    async def _store_soon(self, calls: UncutCalls) -> None:
        stored = False
        while not stored:
            await asyncio.sleep(defaults.METRICS_EVERY)
            if self._core.loop is None:  # closed: the rows are stored if it is opened again
                return
            stored = await calls.make(self._metrics.store(self._core.storage))

    async def _close(self) -> None:
        """Store the last rows, once no earlier store is in progress. Runs on the loop where the app is open; the server
        may run on another one, which may have ended."""
        self._closing = True
        storing, self._storing = self._storing, None
        try:
            if storing is not None:
                await self._end(storing)
            await self._metrics.store(self._core.storage)
        finally:
            self._closing = False

    async def _end(self, storing: asyncio.Task[None]) -> None:
        """End this task and its store in progress, on their own loop."""
        loop = storing.get_loop()
        if loop is not asyncio.get_running_loop():
            with suppress(LoopEnded, EventLoopError, StorageUnavailable):  # it has ended, is stopped or is blocked
                await LoopCall(loop, lambda: self._end(storing)).wait()
            return
        storing.cancel()
        await asyncio.wait([storing])
        await self._calls.ended()
