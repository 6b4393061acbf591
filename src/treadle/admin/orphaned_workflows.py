"""Emits `workflow.orphaned` when a workflow ends for which no process has ever waited.

A process that waits stores a note: a row of the workflow that no worker runs. A process that emits the event stores the
same note first, so only one process emits it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from treadle.core.events import Emitter, Event
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.core.query_model import Query
from treadle.storage import pages
from treadle.storage.contract import Storage

GRACE: Final = 0.1  # s after the end during which a process may still begin to wait
KEEP: Final = 86_400.0  # s that a note is kept, so that the event is not emitted twice


class OrphanedWorkflows:
    """Stores notes and emits the event, in processes that have a listener for it."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], emitter: Emitter) -> None:
        self._storage, self._emitter = storage, emitter
        self.listening = False

    def listen(self) -> None:
        """Check each workflow that ends in this process from now on."""
        if not self.listening:
            self.listening = True
            self._emitter.on("workflow.ended", self._ended)

    async def waited(self, id: str) -> None:
        """Note that this process waits for a job of the workflow."""
        [row] = await (await self._storage()).get([id])
        if row is not None:
            await self._note(row)

    async def _note(self, row: Record) -> bool:
        """Store a note -> whether it is the first."""
        storage, root, nonce = await self._storage(), row.job.root or row.job.id, f'"{os.urandom(8).hex()}"'
        id = f"treadle:waited:{hashlib.sha256(root.encode()).hexdigest()[:40]}"
        new = NewJob(id=id, payload=nonce, root=root, keep=KEEP, keep_failed=0.0, wait_timeout=KEEP)
        [note] = await storage.enqueue([new])
        if not note.state.final:
            # Settle it at once, so that it does not count as an unfinished row.
            await storage.settle([Outcome(id=id, version=note.version, state=State.SUCCEEDED, result="null")])
        return note.job.payload == nonce

    async def _ended(self, event: Event) -> None:
        await asyncio.sleep(GRACE)
        if event.record is None or not await self._note(event.record):
            return
        states: Counter[str] = Counter()
        async for page in pages(await self._storage(), Query(root=event.id, limit=500)):
            states.update(str(row.state) for row in page.records if row.job.task)
        self._emitter.emit(replace(event, name="workflow.orphaned", attempt=0, states=dict(states)))
