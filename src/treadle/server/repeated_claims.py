"""Requests that repeat a claim under the same claim id while the first request is still in progress.

Only the newest request has a client that waits for the response. The server may notice late, or never, that the
connection of an older one has closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager


class SameClaim:
    """The requests in progress with one claim id.

    turn  held while a job is claimed or released, so that the newest request never gets a job that an older one is
          releasing
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.here = 0  # requests in progress
        self._newest = 0

    def enter(self) -> int:
        """The number of a new request, which is now the newest."""
        self._newest += 1
        return self._newest

    def is_newest(self, number: int) -> bool:
        return number == self._newest

    async def unless_repeated(self, number: int, release: Callable[[], Awaitable[None]]) -> None:
        """Release what this request has claimed, unless a newer one returns it."""
        async with self.turn:
            if self.is_newest(number):
                await release()


class RepeatedClaims:
    """The requests in progress of all claims."""

    def __init__(self) -> None:
        self._claims: dict[str, SameClaim] = {}

    @contextmanager
    def of(self, claim_id: str) -> Iterator[SameClaim]:
        """Count a request of this claim as in progress inside the block."""
        same = self._claims.setdefault(claim_id, SameClaim())
        same.here += 1
        try:
            yield same
        finally:
            same.here -= 1
            if not same.here:
                del self._claims[claim_id]
