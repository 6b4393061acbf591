"""`async with current().once(key)`: one job of the whole fleet gets True, until the mark expires."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Marks(Protocol):
    """What `Once` needs of the durable code of its run."""

    async def win(self, key: str, keep: float | timedelta) -> bool: ...
    async def give_back(self, key: str) -> None: ...
    def wait_here(self, work: Coroutine[Any, Any, T]) -> T: ...


class Once(AbstractAsyncContextManager[bool]):
    """`async with current().once(key) as first`; in threads `with`."""

    def __init__(self, durable: Marks, key: str, keep: float | timedelta) -> None:
        self._durable, self._key, self._keep = durable, key, keep

    async def __aenter__(self) -> bool:
        return await self._durable.win(self._key, self._keep)

    async def __aexit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            await self._durable.give_back(self._key)

    def __enter__(self) -> bool:
        found: bool = self._durable.wait_here(self._durable.win(self._key, self._keep))
        return found

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            self._durable.wait_here(self._durable.give_back(self._key))
