"""Reads many rows page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec.structs import replace

from treadle.core.query_model import Page, Query
from treadle.storage.contract import Storage


class Pages(AsyncIterator[Page]):
    """Every page of a list, from the first to the last one. `read` reads the page after a cursor.

    A loop may leave it early: unlike a generator, it holds nothing that must be closed.
    """

    def __init__(self, read: Callable[[str | None], Awaitable[Page]]) -> None:
        self._read, self._is_over = read, False
        self._cursor: str | None = None

    async def __anext__(self) -> Page:
        if self._is_over:
            raise StopAsyncIteration
        page = await self._read(self._cursor)
        self._cursor, self._is_over = page.cursor, page.cursor is None
        return page


def pages(storage: Storage, query: Query) -> Pages:
    """Every page of a query: `async for page in pages(storage, query)`."""
    return Pages(lambda cursor: storage.find(replace(query, cursor=cursor)))
