"""Chooses which sorted sets a query reads. Pure.

Jobs of every kind but succeeded and cancelled are in sets by kind and queue (`lua/kinds.lua`, the lists of queues);
system jobs have a set of their own. Their sizes are known without reading rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from treadle.core import defaults
from treadle.core.model import State
from treadle.core.query_model import Query
from treadle.core.ranges import OWN
from treadle.storage.redis.counts import Sizes
from treadle.storage.row_rules import OWN_ID

FEW: Final = 5_000  # the most rows that are read and sorted in Python, where no set has the order: 50 ms
LISTS: Final = 64  # sets that one step merges
OTHER: Final = "other"  # succeeded and cancelled jobs, which have no set of their kind

READY: Final = frozenset({"queued", "scheduled", "blocked"})
_BY_STATE: Final = {
    State.READY: READY,
    State.RUNNING: frozenset({"running"}),
    State.WAITING: frozenset({"waiting"}),
    State.FAILED: frozenset({"failed"}),
}
_IN_ORDER: Final = {
    "ended": frozenset({"failed", OTHER}),
    "queue": frozenset({"queued"}),
    "due": READY | {"running", "waiting"},
    "started": frozenset({"running"}),
}
_HAVE_DUE: Final = frozenset({"running", "scheduled"})  # every job of these kinds has a due time
CREATED: Final = ("newest", "oldest")


def kinds_of(query: Query) -> frozenset[str]:
    """The kinds of jobs that can match."""
    only = frozenset[str]()
    for state in query.state or State:
        only |= _BY_STATE.get(state, {OTHER})
    if query.ready is not None:
        only &= {query.ready}
    return only & _IN_ORDER.get(query.order, only)


def is_system(query: Query) -> bool:
    """Whether only system jobs can match."""
    return query.queue == defaults.SYSTEM_QUEUE or (query.task is not None and query.task.startswith(OWN))


def is_simple(query: Query) -> bool:
    """Whether the query filters by kind and queue only, so that it matches all jobs of these."""
    others = query.task, query.root, query.parent, query.label, query.before, query.since
    return all(value is None for value in others)


def has_all(kinds: frozenset[str], order: str) -> bool:
    """Whether this order includes every job of these kinds, so that their number is also the number of matches."""
    return OTHER not in kinds and (order != "due" or kinds <= _HAVE_DUE)


def has_own_label(query: Query) -> bool:
    """Whether a set of its own lists the unfinished rows with this label, one of Treadle's, in this order."""
    is_own = query.label is not None and query.label.startswith(OWN_ID)
    return is_own and query.order in CREATED and bool(query.state) and not any(state.final for state in query.state)


def names_of(kinds: Iterable[str], queue: str) -> list[str]:
    """The names of these kinds in one queue, as `glance.lua` reads them."""
    return [f"{kind}:{queue}" for kind in sorted(kinds)]


def lists_of(query: Query, kinds: frozenset[str], queues: Sequence[str]) -> tuple[str, ...]:
    """The sorted sets to read, in the order of the query: together they have all rows that can match. `queues`: the
    queues with such rows.

    A query in the order "queue" reads the lines instead. For the order "started" there is no set."""
    if has_own_label(query):
        return (f"label:{query.label}",)
    serves = {"ended": {"failed"}, "due": {"scheduled"}}.get(query.order, {"waiting", "blocked"})
    by_kind = tuple(f"of:{kind}:{queue}" for kind in sorted(kinds) for queue in queues) if kinds <= serves else ()
    if 0 < len(by_kind) <= LISTS:
        return by_kind
    if query.order in ("ended", "due"):
        return (query.order,)
    return ("system",) if is_system(query) else ("made",)


def has_kind_only(query: Query, lists: Sequence[str]) -> bool:
    """Whether these sets have no rows of other states or queues than the query asks for."""
    return lists[0].startswith("of:") or not (query.state or query.ready or query.queue)


def jobs_in(sizes: Iterable[Sizes], kinds: frozenset[str], queue: str | None) -> int:
    """The number of jobs of these kinds, in one queue or in all."""
    return sum(
        jobs
        for size in sizes
        for (kind, name), jobs in size.kinds.items()
        if kind in kinds and (queue is None or name == queue)
    )


def queues_in(sizes: Iterable[Sizes], kinds: frozenset[str], queue: str | None) -> list[str]:
    """The queues with jobs of these kinds."""
    return sorted({name for size in sizes for kind, name in size.kinds if kind in kinds and queue in (None, name)})
