"""`app.queues`: pauses, resumes and counts queues. A pause is stored on the queue's own limit, `queue:NAME`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from msgspec.structs import replace

from treadle.admin import estimate as estimates
from treadle.admin.estimate import Copying, QueuePlan, in_turn
from treadle.admin.explain import limits_within
from treadle.admin.limits import Limits
from treadle.admin.moved_looks import Moved
from treadle.core.limit_model import LimitUse, Pause, Resume
from treadle.core.query_model import Glance, Stats
from treadle.core.ranges import OWN
from treadle.storage.contract import Storage
from treadle.tasks.options import name_of


class Queues:
    """Queues by name. A queue needs no declaration: it exists as soon as a job names it."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], limits: Limits, moved: Moved) -> None:
        self._storage, self._limits, self._moved = storage, limits, moved

    async def pause(self, queue: str) -> None:
        """Stop claims from this queue on all workers at once. Running jobs continue; queued jobs keep their order. The
        queue need not have a job yet."""
        await self._limits.names.unused_queue(name_of(queue, "queue"))
        await (await self._storage()).set_limits([Pause(name_of(f"queue:{queue}", "limit name"))])

    async def resume(self, queue: str) -> None:
        """Resume claims from this queue, under its own limit if it has one."""
        await self._limits.names.not_paused("queue", name_of(queue, "queue"))
        await (await self._storage()).set_limits([Resume(name_of(f"queue:{queue}", "limit name"))])

    async def stats(self) -> Stats:
        """The counts by queue, task and state, the workers, and the limits."""
        stats = await (await self._storage()).stats()
        await self._moved.looked("app.queues.stats")
        return replace(stats, limits=_of_users(stats.limits))

    async def glance(self, most: int = 10_000) -> Glance:
        """The queues with unfinished or failed jobs, the workers, and the limits, for repeated calls: up to `most`
        queued jobs are counted in each queue, and up to `most` jobs of each other kind."""
        glance = await (await self._storage()).glance(most)
        await self._moved.looked("app.queues.glance")
        return replace(glance, limits=_of_users(glance.limits))

    async def plan(self, queue: str, within: tuple[str, ...] = ()) -> QueuePlan:
        """Estimate when a queue is empty, what its jobs wait for most, and what would change that.

        within  the queues that the caller may see; (): all
        Takes up to a second of CPU time, in a thread; the estimates of a process are made one after the other.
        """
        storage = await self._storage()
        await self._limits.names.unused_queue(name_of(queue, "queue"))
        await self._moved.looked("app.queues.plan")
        glance = limits_within(await storage.glance(), within)
        copy = await Copying(storage, within).of_queue(queue, glance)
        return await in_turn(lambda: estimates.plan(copy, queue, within))


def _of_users(limits: Iterable[LimitUse]) -> tuple[LimitUse, ...]:
    return tuple(use for use in limits if not use.key.startswith(OWN))
