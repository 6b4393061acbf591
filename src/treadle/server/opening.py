"""Opens the app of a server, or serves without its storage until that answers.

A server, like a worker, does not end because its storage is away. Its probes say so, it answers 503 to each request
that needs the storage, and the first request after the outage opens it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from treadle.core.errors import PASSING, Locked, StorageFull, StorageUnavailable

if TYPE_CHECKING:
    from treadle.app import App

Away = StorageUnavailable | StorageFull | Locked


@asynccontextmanager
async def open_if_there(app: App, waits: bool = True) -> AsyncIterator[Away | None]:
    """An app that is open, and None; or one that a request will open, and the error. Errors that waiting cannot cure,
    such as a wrong password, are raised; without `waits`, all are."""
    away: Away | None = None
    try:
        await app._core.open()
    except PASSING as error:
        if not waits:
            raise
        away = error
    try:
        yield away
    finally:
        if away is None:
            await app._core.leave(even_if_lazily=True)
        else:
            await app._core.close()  # a request may have opened it
