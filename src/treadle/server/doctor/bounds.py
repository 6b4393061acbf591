"""Checks of `treadle doctor` for bounded queues: those that are full, or nearly so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from treadle.admin.explain.wording import set_limit
from treadle.core.defaults import MAX_COUNT
from treadle.core.model import State
from treadle.core.words import lasts, plural
from treadle.server.doctor.common import Check, ok, warn
from treadle.storage.bounds import bound_of, bounds_in

if TYPE_CHECKING:
    from treadle.core.limit_model import Limit
    from treadle.core.query_model import Stats

NEARLY: Final = 0.8  # a queue that is filled to this share of its bound is named


def checks(stats: Stats) -> Iterator[Check]:
    """A warning for each queue that is full or nearly so; one line for the others, if any queue has a bound."""
    bounds, waiting, oldest = bounds_in(stats.limits), Counter[str](), dict[str, float]()
    for count in stats.counts:
        if count.state is State.READY:
            waiting[count.queue] += count.jobs
            oldest[count.queue] = max(oldest.get(count.queue, 0.0), count.oldest or 0.0)
    named = {name.partition(":")[2] for name in bounds} - {""}
    bounded = {queue: rule for queue in {*waiting, *named} if (rule := bound_of(bounds, queue)) is not None}
    with_room = 0
    for queue, rule in sorted(bounded.items()):
        if waiting[queue] < NEARLY * (rule.max_waiting or 0):
            with_room += 1
        else:
            yield _full(queue, rule, waiting[queue], oldest.get(queue, 0.0))
    if with_room:
        yield ok("bounds", f"{plural(with_room, 'bounded queue')} with room")


def _full(queue: str, rule: Limit, waiting: int, oldest: float) -> Check:
    most = rule.max_waiting or 0
    does = "new jobs are refused" if rule.when_full == "refuse" else "queued jobs are cancelled for new ones"
    since = f", the first for {lasts(oldest)}" if oldest else ""
    return warn(
        "bounds",
        f"queue {queue!r} is {'full' if waiting >= most else 'nearly full'}: {waiting:,} of {most:,} jobs wait{since}"
        f"{f'; {does}' if waiting >= most else ''}",
        f"add workers, enqueue less, or double the bound: {set_limit(rule, max_waiting=min(2 * most, MAX_COUNT))}",
    )
