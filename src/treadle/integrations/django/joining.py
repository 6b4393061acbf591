"""Stores jobs of `@app.task` when `commit` says, as it does jobs of Django's tasks."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from treadle.app import App
from treadle.core.model import NewJob, Record, State
from treadle.integrations.django.options import BackendOptions
from treadle.producer import Write
from treadle.storage import MemoryStorage


def joined(app: App, backend: BackendOptions) -> Write | None:
    """The function that stores the jobs of this call. None: they are stored at once, because this thread has no block
    of `atomic` open, or because `commit` is "now"."""
    if backend.commit == "now" or backend.database not in connections.settings:
        return None
    connection, core = connections[backend.database], app._core
    if not connection.in_atomic_block:
        return None
    if backend.commit != "after" or in_test_memory(app):
        return core.bound(connection).enqueue

    async def at_the_commit(jobs: Sequence[NewJob]) -> list[Record]:
        connection.on_commit(lambda: app.sync.call(_stored(app, jobs)))
        return [Record(job=new, version=0, state=State.READY, created_at=core.now()) for new in jobs]

    return at_the_commit


def in_test_memory(app: App) -> bool:
    """Whether `app.testing()` keeps the jobs in memory. It waits for the commit itself, also in a `TestCase`."""
    return app._core.in_test and isinstance(app._core.choice.storage, MemoryStorage)


async def _stored(app: App, jobs: Sequence[NewJob]) -> None:
    await (await app._core.opened()).enqueue(jobs)
