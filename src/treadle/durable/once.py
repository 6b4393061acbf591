"""`async with current().once(key)`: only one job gets True, until its mark expires."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Marks(Protocol):
    """The methods of a run's durable code that `Once` uses."""

    async def win(self, key: str, keep: float | timedelta) -> bool: ...
    async def give_back(self, key: str) -> None: ...
    def wait_here(self, work: Coroutine[Any, Any, T]) -> T: ...


class Once(AbstractAsyncContextManager[bool]):
    """`async with current().once(key) as first`, or `with` in threads."""

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
