"""How full the bounded queues are, also beyond the bound at which a glance stops to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from treadle.core.model import State
from treadle.core.query_model import Count, Glance, QueueGlance
from treadle.storage import Bounds, bound_of, bounds_in
from treadle.storage.contract import Storage


class Filling(Struct, frozen=True):
    """jobs: those that the bound of a queue counts; capped: there are at least as many."""

    jobs: int
    capped: bool = False


class Counted(Struct, frozen=True):
    """Two fields of `Look`; empty if a glance shows enough."""

    exact: Mapping[str, int] = {}
    counts: Sequence[Count] = ()


async def counted(storage: Storage, glance: Glance) -> Counted:
    """How full the queues are, and the counts by task if a worker reports tasks that need labels or resources.

    Takes one more call, or none. Raises StorageError.
    """
    is_open = _is_open(glance)
    if not is_open and not any(worker.needs for worker in glance.workers):
        return Counted()
    counts = (await storage.stats()).counts
    return Counted(_waiting(counts) if is_open else {}, counts)


async def exact_filling(storage: Storage, glance: Glance) -> Mapping[str, int]:
    """The jobs that count towards the bound, by queue, if the glance does not show whether a bounded queue is full.

    The kept counts are read then, which takes one more call. Raises StorageError.
    """
    return _waiting((await storage.stats()).counts) if _is_open(glance) else {}


def _waiting(counts: Iterable[Count]) -> Counter[str]:
    """The jobs that the bounds of queues count, by queue."""
    waiting: Counter[str] = Counter()
    for count in counts:
        if count.state is State.READY:
            waiting[count.queue] += count.jobs
    return waiting


def filling_of(queue: QueueGlance, capped: bool, exact: Mapping[str, int]) -> Filling:
    """The filling of one queue. capped: whether the glance stopped to count scheduled or blocked jobs."""
    jobs = queue.queued + queue.scheduled + queue.blocked
    if jobs < (kept := exact.get(queue.name, 0)):
        return Filling(kept)
    return Filling(jobs, not exact and (capped or queue.queued_capped))


def is_rest_capped(glance: Glance) -> bool:
    """Whether a queue may have more scheduled or blocked jobs than its number says."""
    return "scheduled" in glance.capped or "blocked" in glance.capped


def _is_open(glance: Glance) -> bool:
    """Whether a bounded queue may be full, although its numbers, which stopped at a bound, do not reach its own."""
    bounds = bounds_in(glance.limits)
    if not bounds:
        return False
    if is_rest_capped(glance):
        return True  # also of queues that the glance does not list
    return any(queue.queued_capped and not _reaches(bounds, queue) for queue in glance.queues)


def _reaches(bounds: Bounds, queue: QueueGlance) -> bool:
    bound = bound_of(bounds, queue.name)
    most = None if bound is None else bound.max_waiting
    return most is None or queue.queued + queue.scheduled + queue.blocked >= most
