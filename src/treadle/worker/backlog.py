"""Calls `on_backlog` when a worker cannot keep up: every claim fills its free slots and jobs are still queued."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from treadle.storage.contract import Storage
from treadle.worker.state import WorkerState

log = logging.getLogger("treadle")


class Backlog(Struct, frozen=True, kw_only=True):
    """The argument of `on_backlog`."""

    worker: str
    seconds: float  # how long the worker has been behind
    running: int
    queued: int  # queued jobs in its queues; of each queue at most 10,000 are counted


class BacklogMonitor:
    """Calls `on_backlog` when the worker has been behind for `after` seconds: once per episode, or every `every`
    seconds."""

    def __init__(
        self,
        on_backlog: Callable[[Backlog], Any],
        after: float,
        every: float | None,
        state: WorkerState,
        storage: Storage,
        queues: Collection[str],
        answered: Callable[[str], None] = lambda loop: None,
    ) -> None:
        self._answered = answered
        self._on_backlog, self._after, self._every = on_backlog, after, every
        self._state, self._storage, self._queues = state, storage, frozenset(queues)
        self._reported_at: float | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(self._after / 4, 1.0))
            await self.look(self._state.loop.time())

    async def look(self, now: float) -> None:
        since = self._state.demand.behind_since
        if since is None:
            self._reported_at = None
            self._answered("backlog")  # this loop calls nothing now, so it must not prolong an outage
            return
        reported = self._reported_at is not None and (self._every is None or now - self._reported_at < self._every)
        if now - since < self._after or reported:
            return
        queues = (await self._storage.glance()).queues
        self._answered("backlog")
        queued = sum(queue.queued for queue in queues if queue.name in self._queues)
        if not queued:
            self._state.demand.is_not_behind()  # all slots are busy, but no job is queued
            return
        self._reported_at = now
        await self._report(
            Backlog(worker=self._state.name, seconds=now - since, running=len(self._state.running), queued=queued)
        )

    async def _report(self, backlog: Backlog) -> None:
        try:
            answer = self._on_backlog(backlog)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("on_backlog failed; the worker continues")
