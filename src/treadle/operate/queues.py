"""`app.queues`: pausing a queue and counting what is in it. A pause is the queue's own limit, set to no slots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.model import Limit, Stats
from treadle.options import name_of
from treadle.storage.contract import Storage


class Queues:
    """Queues are names only: one is there as soon as a job is asked under it."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage

    async def pause(self, queue: str) -> None:
        """Claim nothing more from this queue, at once and everywhere. What runs goes on, what is in line keeps its
        turn."""
        await (await self._storage()).set_limits([Limit(f"queue:{name_of(queue, 'queue')}", slots=0)])

    async def resume(self, queue: str) -> None:
        """Claim from it again. A limit the queue had before the pause has to be set anew."""
        await (await self._storage()).set_limits([Limit(f"queue:{name_of(queue, 'queue')}")])

    async def stats(self) -> Stats:
        """Counts by queue, task and state; the workers; the limits."""
        return await (await self._storage()).stats()
