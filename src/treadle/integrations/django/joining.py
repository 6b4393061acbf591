"""Stores jobs of `@app.task` when `commit` says, as it does jobs of Django's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from treadle.app import App
from treadle.core.errors import KeyHeld
from treadle.core.job import Job
from treadle.core.model import NewJob, Record, State
from treadle.integrations.django.options import BackendOptions
from treadle.producer import Joined
from treadle.storage import MemoryStorage


class AtTheCommit:
    """Stores jobs when the transaction of this connection has committed. Only then it is known whether another job has
    the key of one: its handle becomes that of the other job."""

    def __init__(self, app: App, connection: Any) -> None:
        self._app, self._connection = app, connection
        self._handles: Sequence[Job[Any, Any]] = ()

    def follow(self, handles: Sequence[Job[Any, Any]]) -> None:
        """The handles that the caller gets."""
        self._handles = handles

    async def write(self, jobs: Sequence[NewJob]) -> list[Record]:
        self._connection.on_commit(lambda: self._store(jobs))
        now = self._app._core.now()
        return [Record(job=new, version=0, state=State.READY, created_at=now) for new in jobs]

    def _store(self, jobs: Sequence[NewJob]) -> None:
        rows = self._app.sync.call(_stored(self._app, jobs))
        others = {new.id: row.job for new, row in zip(jobs, rows, strict=True) if row.job.id != new.id}
        for handle in self._handles:
            if (other := others.get(handle.id)) is not None:
                handle.id, handle.task, handle.created = other.id, other.task, False


def joined(app: App, backend: BackendOptions) -> Joined | None:
    """How the jobs of this call are stored. None: they are stored at once, because this thread has no block
    of `atomic` open, or because `commit` is "now"."""
    if backend.commit == "now" or backend.database not in connections.settings:
        return None
    connection, core = connections[backend.database], app._core
    if not connection.in_atomic_block:
        return None
    if backend.commit != "after" or in_test_memory(app):
        return Joined(core.bound(connection).enqueue)
    later = AtTheCommit(app, connection)
    return Joined(later.write, later.follow)


def in_test_memory(app: App) -> bool:
    """Whether `app.testing()` keeps the jobs in memory. It waits for the commit itself, also in a `TestCase`."""
    return app._core.in_test and isinstance(app._core.choice.storage, MemoryStorage)


async def _stored(app: App, jobs: Sequence[NewJob]) -> list[Record]:
    try:
        return await (await app._core.opened()).enqueue(jobs)
    except KeyHeld as error:
        raise KeyHeld(error.key.partition(" ")[2], error.id) from None  # as the user named it
