"""Answers that are made at most once in a while, by one call for all callers that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from treadle.core.errors import TreadleError

log = logging.getLogger("treadle.server")

T = TypeVar("T")

LEAST: Final = 2.0  # s between two reads of a storage
SHARE: Final = 50  # times as long as a read takes: 2 % of the time
LONGEST: Final = 60.0  # s between two reads at most
MOST: Final = 100  # answers that are kept, for example one for the queues of each token


def pace(cost: float) -> float:
    """Seconds to wait between two reads that take `cost` seconds each."""
    return min(LONGEST, max(LEAST, SHARE * cost))


def warn_of_outage(what: str, error: Exception) -> None:
    """Log that a look at the storage has failed; a fault of ours with its traceback."""
    is_known = isinstance(error, TreadleError | TimeoutError)
    reason = str(error) or "no answer in time"
    log.warning("%s: storage unavailable (%s); retrying", what, reason, exc_info=None if is_known else error)


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
