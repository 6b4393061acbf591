"""Decides about bounded queues: the bound of a queue, which jobs need room, and which may be shed. Pure.

Every storage must decide alike; the SQL and Lua versions follow this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from treadle.core import defaults
from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import NewJob, Record
from treadle.core.query_model import Kind
from treadle.core.ranges import OWN

LOOK: Final = defaults.SHED_LOOK

WAITING: Final[frozenset[Kind]] = frozenset({"queued", "scheduled", "blocked"})
"""The kinds that a bound counts."""

Bounds = Mapping[str, Limit]
"""The rules that decide about bounds, by limit name ("queue" and "queue:<name>"). Empty if no queue has a bound."""

Candidate: TypeAlias = tuple[str, int, bool]
"""A queued job: its id, its rank, and whether it may be shed."""


def bounds_of(facts: Mapping[str, LimitFacts]) -> dict[str, Limit]:
    """The rules of queues, as if no limit were paused; empty if none of the rules has a bound."""
    return _of_queues({name: limit.set or limit.declared for name, limit in facts.items()})


def bounds_in(limits: Iterable[LimitUse]) -> dict[str, Limit]:
    """The same from the answer of `limits`."""
    return _of_queues({use.key: use.behind if use.pauses else use.rule for use in limits})


def _of_queues(rules: Mapping[str, Limit | None]) -> dict[str, Limit]:
    bounds = {name: rule for name, rule in rules.items() if rule is not None and name.partition(":")[0] == "queue"}
    return bounds if any(rule.max_waiting is not None for rule in bounds.values()) else {}


def bound_of(bounds: Bounds, queue: str) -> Limit | None:
    """The rule that bounds a queue; None: the queue has no bound."""
    rule = bounds.get(f"queue:{queue}") or bounds.get("queue")
    return rule if rule is not None and rule.max_waiting is not None else None


def needs_room(job: NewJob) -> bool:
    """Whether a new job needs room, unless it supersedes a ready job of its queue."""
    return bool(job.task) and not job.after and not job.function_done and not job.task.startswith(OWN)


def excess(most: int, waiting: int, asked: int) -> int:
    """How many jobs must be shed, or a positive number of jobs that are too many. An enqueue never raises the number of
    waiting jobs above the bound; it does not correct an excess that it finds."""
    return max(0, min(asked, waiting + asked - most))


def may_shed(row: Record) -> bool:
    """Whether a queued job may be shed: no run of it has begun, so nothing of its work is lost."""
    return row.started_at is None and not row.function_done and not row.job.task.startswith(OWN)


def shed_words(rule: Limit, queue: str) -> str:
    """The error of a job that was shed: the same text in every storage."""
    return f"queue {queue} was full: max_waiting is {rule.max_waiting}"
