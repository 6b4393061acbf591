"""Counts the resources of one worker that its running jobs use.

It knows no other part of the worker. A worker without resources has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from treadle.policy.claim_plan import Uses, less


class ResourceUse:
    """One for each start of a worker with resources. Its methods run on the worker's event loop."""

    def __init__(self, resources: Mapping[str, int]) -> None:
        self.has, self.used = dict(resources), dict.fromkeys(resources, 0)
        self._calls: deque[tuple[Uses, asyncio.Future[None]]] = deque()  # calls of batches that wait for resources

    def take(self, uses: Uses) -> None:
        """A job or a call begins."""
        for name, amount in uses:
            self.used[name] = self.used.get(name, 0) + amount

    def release(self, uses: Uses) -> None:
        """A job or a call has ended. Waiting calls that fit then begin."""
        for name, amount in uses:
            self.used[name] -= amount
        while self._calls:
            first, begins = self._calls[0]
            if not begins.done():
                if not self._fits(first):
                    break
                self.take(first)
                begins.set_result(None)
            self._calls.popleft()

    async def enter(self, uses: Uses) -> None:
        """Take the resources of one call of a batch; waits while they are in use. The claims of its items have left
        room for it, unless the items have more keys than expected."""
        if not self._calls and self._fits(uses):
            self.take(uses)
            return
        begins = asyncio.get_running_loop().create_future()
        self._calls.append((uses, begins))
        try:
            await begins
        except asyncio.CancelledError:
            if begins.done() and not begins.cancelled():
                self.release(uses)
            raise

    def _fits(self, uses: Uses) -> bool:
        return all(self.used.get(name, 0) + amount <= self.has.get(name, 0) for name, amount in uses)

    def free(self) -> dict[str, int]:
        """The resources that are not in use, less those that the waiting calls of batches are going to use."""
        free = {name: has - self.used[name] for name, has in self.has.items()}
        for uses, _ in self._calls:
            free = less(free, uses)
        return free
