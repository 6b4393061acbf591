"""Makes Treadle's tables when `manage.py migrate` has migrated the database that has the jobs, test databases too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from django.db import connections

from treadle.integrations.django.database import is_in_memory
from treadle.integrations.django.job_store import JobStore, stores
from treadle.outbox import Outbox
from treadle.storage import connect

_made: set[str] = set()  # URLs of databases that this process has migrated: `flush` sends the signal too


def after_migrate(using: str, verbosity: int = 1, **kwargs: Any) -> None:
    """Receiver of `post_migrate`. Raises StorageError."""
    for store in stores():
        if store.outbox == using and store.migrates:
            outbox = store.app.outbox
            assert outbox is not None, "a store with an outbox has an app with one"
            in_thread(_create(outbox))
        if store.database != using or not store.migrates:
            continue
        if is_in_memory(connections[using]):
            make_in_memory(store)
        elif store.url not in _made or verbosity:
            in_thread(_open(store.url))
            _made.add(store.url)


def make_in_memory(store: JobStore) -> None:
    store.app  # noqa: B018 - makes or follows the storage
    if store.memory is not None:
        store.memory.make_tables(connections[store.database])


def in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run it on an event loop of its own: the caller may run on one."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="treadle-django-migrate")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


async def _create(outbox: Outbox) -> None:
    await outbox.create()
    await outbox._close()


async def _open(url: str) -> None:
    """Opening a storage migrates it."""
    storage = connect(url)
    await storage.open()
    await storage.close()
