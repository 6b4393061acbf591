"""Runs inline jobs in the process that enqueued them, with a worker that claims only these jobs, by id.

The jobs are stored like all others, so any worker can run them if this process dies or has no free slot.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING

from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.concurrency.spawn import started
from treadle.core.errors import ResourceFailed, StorageError, StorageUnavailable

if TYPE_CHECKING:
    from treadle.worker.core import WorkerCore
    from treadle.worker.parts import WorkerHost

MOST = 64  # jobs at once; more wait for an ordinary worker


class InlineWorker:
    """Starts its worker with the first inline job, and stops it with the app.

    The worker runs on the event loop of the first inline job; calls from other loops are passed to that loop.
    """

    def __init__(self, app: WorkerHost) -> None:
        self._app = app
        self._starting: asyncio.Task[WorkerCore] | None = None
        self._started = False
        self._lock = threading.Lock()
        self.stopping = False

    @property
    def users(self) -> int:
        """How many of the app's users this worker is, 0 or 1: it must not keep the app open by itself."""
        return int(self._started)

    async def run(self, ids: Iterable[str]) -> None:
        """Claim these jobs and start as many as have a free slot. Raises StorageError or
        ResourceFailed if the worker cannot start."""
        here, job_ids = asyncio.get_running_loop(), list(ids)
        with self._lock:
            starting = self._starting
            if starting is None or starting.get_loop().is_closed():
                self._started = False
                # Not in the context of the first caller: later jobs must not see its context variables.
                starting = self._starting = started(self._start(), loop=here, context=Context())
        if starting.get_loop() is here:
            await self._run(starting, job_ids)
            return
        try:
            await LoopCall(starting.get_loop(), lambda: self._run(starting, job_ids)).wait()
        except LoopEnded:
            raise StorageUnavailable("the event loop of the app's inline worker has ended") from None

    async def _run(self, starting: asyncio.Task[WorkerCore], ids: list[str]) -> None:
        await asyncio.wait([starting])  # if this is cancelled, the start continues
        if starting.cancelled():  # `stop` has cancelled it, and not this task
            raise StorageUnavailable("the app was closed while its inline worker started")
        try:
            worker = starting.result()
        except (StorageError, ResourceFailed):
            if self._starting is starting:
                self._starting = None
            raise
        await worker.run_ids(ids)

    async def _start(self) -> WorkerCore:
        # A worker is a fifth of the time that `from treadle import App` would take; most processes start none.
        from treadle.worker.config import WorkerConfig, worker_name
        from treadle.worker.core import WorkerCore

        worker = WorkerCore(self._app, WorkerConfig(name=worker_name(), queues={}, concurrency=MOST))
        await worker.start()
        self._started = True
        return worker

    async def stop(self, grace: float | None = None) -> bool:
        """Stop the worker as `Worker.stop` does. Returns whether there was one."""
        starting = self._starting
        if starting is None:
            return False
        loop = starting.get_loop()
        if loop is asyncio.get_running_loop():
            await self._stop(starting, grace)
        elif not loop.is_closed():
            with suppress(LoopEnded):
                await LoopCall(loop, lambda: self._stop(starting, grace)).wait()
        return True

    async def _stop(self, starting: asyncio.Task[WorkerCore], grace: float | None) -> None:
        self.stopping = True
        try:
            if not starting.done():  # it still waits for the storage
                starting.cancel()
                await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().stop(grace)
        finally:
            self.stopping = False
            if self._starting is starting:
                self.forget()

    def forget(self) -> None:
        """Drop the worker: it has ended, or this is a forked child, which has none of its parent's event loops."""
        self._starting, self._started, self._lock = None, False, threading.Lock()
