"""`workflow.orphaned`: a workflow has ended, and nobody waits for it or ever did.

Without it a result that nobody fetched would be lost without a word. Who waits leaves a mark: a row of the workflow
that nobody runs. Who tells leaves the same mark first, so of all who might tell, one does.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from treadle.core.events import Emitter, Event
from treadle.core.model import NewJob, Outcome, Query, Record, State
from treadle.storage.contract import Storage

GRACE: Final = 0.1  # s after the ending for somebody to come and wait
KEEP: Final = 86_400.0  # s a mark outlives its workflow: one told twice would be worse than a row


class OrphanedWorkflows:
    """Marks and their reading, in processes where somebody listens for orphans; elsewhere it costs nothing."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], emitter: Emitter) -> None:
        self._storage, self._emitter = storage, emitter
        self.listening = False

    def listen(self) -> None:
        """Look at each workflow that ends here, from now on."""
        if not self.listening:
            self.listening = True
            self._emitter.on("workflow.ended", self._ended)

    async def waited(self, id: str) -> None:
        """Somebody waits for this job, and so for its workflow."""
        [row] = await (await self._storage()).get([id])
        if row is not None:
            await self._mark(row)

    async def _mark(self, row: Record) -> bool:
        """Leave a mark; whether it is the first."""
        storage, root, nonce = await self._storage(), row.job.root or row.job.id, f'"{os.urandom(8).hex()}"'
        id = f"treadle:waited:{hashlib.sha256(root.encode()).hexdigest()[:40]}"
        new = NewJob(id=id, payload=nonce, root=root, keep=KEEP, keep_failed=0.0, wait_timeout=KEEP)
        [mark] = await storage.enqueue([new])
        if not mark.state.final:
            # Settled at once: it is not to be counted among what is unfinished.
            await storage.settle([Outcome(id=id, version=mark.version, state=State.SUCCEEDED, result="null")])
        return mark.job.payload == nonce

    async def _ended(self, event: Event) -> None:
        await asyncio.sleep(GRACE)
        if event.record is None or not await self._mark(event.record):
            return
        states: Counter[str] = Counter()
        storage, cursor = await self._storage(), None
        while True:
            page = await storage.find(Query(root=event.id, limit=500, cursor=cursor))
            states.update(str(row.state) for row in page.records if row.job.task)
            cursor = page.cursor
            if cursor is None:
                break
        self._emitter.emit(
            Event(
                name="workflow.orphaned",
                id=event.id,
                task=event.task,
                queue=event.queue,
                worker=event.worker,
                error=event.error,
                record=event.record,
                states=dict(states),
            )
        )
