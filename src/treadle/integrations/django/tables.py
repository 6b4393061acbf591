"""Makes Treadle's tables when `manage.py migrate` has migrated the database that has the jobs, test databases too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

from treadle.integrations.django.database import is_in_memory
from treadle.integrations.django.job_store import stores
from treadle.outbox import Outbox
from treadle.storage import connect

_made: set[str] = set()  # URLs of databases that this process has migrated: `flush` sends the signal too


def after_migrate(using: str, verbosity: int = 1, **kwargs: Any) -> None:
    """Receiver of `post_migrate`. Raises StorageError."""
    for store in stores():
        if store.outbox == using and store.migrates:
            outbox = store.app.outbox
            assert outbox is not None, "a store with an outbox has an app with one"
            _run(_create(outbox))
        if store.database != using or not store.migrates:
            continue
        if is_in_memory(connections[using]):
            store.app  # noqa: B018 - makes or follows the storage
            if store.memory is not None:
                store.memory.make_tables(connections[using])
        elif store.url not in _made or verbosity:
            _run(_open(store.url))
            _made.add(store.url)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a thread of its own: this one may have an event loop that runs."""
    with ThreadPoolExecutor(1, "treadle-django-migrate") as thread:
        thread.submit(asyncio.run, work).result()


async def _create(outbox: Outbox) -> None:
    await outbox.create()
    await outbox._close()


async def _open(url: str) -> None:
    """Opening a storage migrates it."""
    storage = connect(url)
    await storage.open()
    await storage.close()
