"""Inline jobs: run by the process that enqueued them, by a worker that claims nothing but what it is handed.

Without it `inline=True` would mean a function call that no storage knows of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import Context

from treadle.errors import StorageError
from treadle.worker.loop import Worker
from treadle.worker.running import Host

MOST = 64  # jobs at once; more wait for an ordinary worker


class Inline:
    """That worker: it starts with the first inline job, and stops with the app."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._starting: asyncio.Task[Worker] | None = None
        self._started = False

    @property
    def users(self) -> int:
        """How many of the app's users it is: it keeps it open for nobody but itself."""
        return int(self._started)

    async def run(self, ids: Iterable[str]) -> None:
        """Claim these jobs and start them, as far as there is room. Raises StorageError when it cannot start."""
        if self._starting is None:
            # Not in the context of whoever happens to be first: its variables are not those of the jobs to come.
            self._starting = asyncio.create_task(self._start(), context=Context())
        try:
            worker = await asyncio.shield(self._starting)
        except StorageError:
            self._starting = None
            raise
        await worker.run_ids(list(ids))

    async def _start(self) -> Worker:
        worker = Worker(self._app, queues=[], concurrency=MOST)
        await worker.start()
        self._started = True
        return worker

    async def stop(self, grace: float | None = None) -> bool:
        """End it as `Worker.stop` does; answers whether there was one."""
        starting = self._starting
        self.forget()
        if starting is not None:
            await (await starting).stop(grace)
        return starting is not None

    def forget(self) -> None:
        """Its event loop is gone, and it with it."""
        self._starting, self._started = None, False
