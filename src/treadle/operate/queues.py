"""`app.queues`: pausing a queue and counting what is in it. A pause shuts the queue's own limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from treadle.model import Stats
from treadle.operate.limits import Limits
from treadle.options import OWN, name_of
from treadle.storage.contract import Storage


class Queues:
    """Queues are names only: one is there as soon as a job is asked under it."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], limits: Limits) -> None:
        self._storage, self._limits = storage, limits

    async def pause(self, queue: str) -> None:
        """Claim nothing more from this queue, at once and everywhere. What runs goes on, what is in line keeps its
        turn."""
        await self._limits.shut(f"queue:{name_of(queue, 'queue')}", "paused", True)

    async def resume(self, queue: str) -> None:
        """Claim from it again, under the limit it had before the pause, if it had one."""
        await self._limits.shut(f"queue:{name_of(queue, 'queue')}", "paused", False)

    async def stats(self) -> Stats:
        """Counts by queue, task and state; the workers; the limits."""
        found = await (await self._storage()).stats()
        return replace(found, limits=tuple(use for use in found.limits if not use.key.startswith(OWN)))
