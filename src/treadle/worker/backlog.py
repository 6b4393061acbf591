"""An alarm for a worker that cannot keep up: more stands in line than it takes, and that for a while.

Without it a backlog would be noticed when somebody misses their mail.
"""

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
    """What `on_backlog` is told."""

    worker: str
    seconds: float  # how long the worker has been behind
    running: int
    in_line: int  # jobs that stand in its queues


class BacklogMonitor:
    """Behind is who takes as much as it can, or has no slot free. Told once per episode, or every `again` seconds."""

    def __init__(
        self,
        tell: Callable[[Backlog], Any],
        after: float,
        again: float | None,
        state: WorkerState,
        storage: Storage,
        queues: Collection[str],
        answered: Callable[[str], None] = lambda loop: None,
    ) -> None:
        self._answered = answered
        self._tell, self._after, self._again = tell, after, again
        self._state, self._storage, self._queues = state, storage, frozenset(queues)
        self._told_at: float | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(self._after / 4, 1.0))
            await self.look(self._state.loop.time())

    async def look(self, now: float) -> None:
        since = self._state.behind_since
        if since is None:
            self._told_at = None
            self._answered("backlog")  # nothing is asked any more
            return
        told = self._told_at is not None and (self._again is None or now - self._told_at < self._again)
        if now - since < self._after or told:
            return
        counts = (await self._storage.stats()).counts
        self._answered("backlog")
        line = sum(count.in_line for count in counts if count.queue in self._queues)
        if not line:
            self._state.behind_since = None  # all slots are busy, and that is all
            return
        self._told_at = now
        await self._say(
            Backlog(worker=self._state.name, seconds=now - since, running=len(self._state.running), in_line=line)
        )

    async def _say(self, backlog: Backlog) -> None:
        try:
            answer = self._tell(backlog)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("on_backlog failed; the worker goes on")
