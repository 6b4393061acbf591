"""Makes Treadle's tables when `manage.py migrate` has migrated the database that has the jobs, test databases too, and
empties them when a test has flushed it."""

from __future__ import annotations

import asyncio
import atexit
import glob
import re
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.db import connections, transaction

from treadle.integrations.django.database import is_in_memory
from treadle.integrations.django.database_app import DatabaseApp, in_tests, stores
from treadle.outbox import Outbox
from treadle.storage import connect, tables

_made: set[str] = set()  # URLs of databases that this process has migrated: `flush` sends the signal too


def after_migrate(using: str, verbosity: int = 1, **kwargs: Any) -> None:
    """Receiver of `post_migrate`. `flush`, which ends a TransactionTestCase, sends it without a plan. Raises
    StorageError."""
    for store in stores():
        if not store.migrates:
            continue
        if store.outbox == using:
            outbox = store.app.outbox
            assert outbox is not None, "a store with an outbox has an app with one"
            _run(_create(outbox))
        elif store.database == using:
            _make(store, using, verbosity)
        else:
            continue
        if in_tests() and "plan" not in kwargs:
            _empty(store, connections[using])


def _make(store: DatabaseApp, using: str, verbosity: int) -> None:
    if is_in_memory(connections[using]):
        store.app  # noqa: B018 - makes or follows the storage
        if store.memory is not None:
            store.memory.make_tables(connections[using])
    elif store.url not in _made or verbosity:
        _run(_open(store.url))
        if in_tests() and store.url not in _made and connections[using].vendor == "sqlite":
            atexit.register(_tidy, Path(connections[using].settings_dict["NAME"]))
        _made.add(store.url)


def _tidy(file: Path) -> None:
    """Remove the files next to a database of tests that was removed, and next to its copies for `--parallel`."""
    name = re.compile(rf"({re.escape(file.stem)}(_\d+)?{re.escape(file.suffix)})-(lock|wal|shm)")
    for other in file.parent.glob(f"{glob.escape(file.stem)}*"):
        match = name.fullmatch(other.name)
        if match and not other.with_name(match[1]).exists():
            other.unlink(missing_ok=True)


def for_copies(using: str, **kwargs: Any) -> None:
    """Receiver of `post_migrate`, of each app: moves SQLite's log back into a database of tests, because Django copies
    the file alone for `--parallel`. Treadle's tables come with such a log."""
    connection = connections[using]
    if in_tests() and "plan" in kwargs and connection.vendor == "sqlite" and not is_in_memory(connection):
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _empty(store: DatabaseApp, connection: Any) -> None:
    """Delete the rows, as `flush` does with those of Django's models."""
    quote = connection.ops.quote_name
    if store.outbox is not None:
        names = [quote("treadle_outbox")]
    else:
        sqlite = connection.vendor == "sqlite"
        schema = "" if sqlite else f"{quote(store.options.schema)}."
        own = tables(f"treadle.storage.{'sqlite' if sqlite else 'postgres'}")
        names = [f"{schema}{quote(name)}" for name in own if name != "meta"]
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"DELETE FROM {name}")


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
