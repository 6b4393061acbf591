"""An answer that is made at most once in a while, by one call for all that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MOST: Final = 100  # keys that are kept, such as the queues of different tokens


class KeptAnswers(Generic[T]):
    """Answers by key, each kept for `lasts` seconds. An error is raised to all that wait, and not kept."""

    def __init__(self, lasts: float) -> None:
        self._lasts = lasts
        self._kept: dict[Hashable, tuple[float, T]] = {}
        self._locks: dict[Hashable, asyncio.Lock] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The kept answer of this key, or a new one."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            now = asyncio.get_running_loop().time()
            kept = self._kept.get(key)
            if kept is not None and now - kept[0] < self._lasts:
                return kept[1]
            value = await make()
            self._kept.pop(key, None)
            self._kept[key] = (asyncio.get_running_loop().time(), value)
            while len(self._kept) > MOST:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self._locks.pop(oldest, None)
            return value
