"""Makes the overview of a caller from one look and its rights. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec.structs import asdict, replace

from treadle.core import defaults
from treadle.core.limit_model import Limit, LimitUse
from treadle.core.model import Presence
from treadle.core.query_model import QueueGlance, Stats
from treadle.core.queue_rules import QueueRules
from treadle.core.ranges import OWN
from treadle.server.auth import rights
from treadle.server.auth.tokens import ANYBODY, Token
from treadle.server.doctor import placement
from treadle.server.overview.activity import PERIODS, Activity
from treadle.server.overview.filling import filling_of, is_rest_capped
from treadle.server.overview.look import Look
from treadle.server.overview.notices import notices
from treadle.server.overview.views import Counted, Overview, PauseView, QueueOverview, Rates, Totals, WorkerView
from treadle.storage import bound_of, bounds_in

COUNTS: Final = ("queued", "running", "scheduled", "blocked", "waiting", "failed")


def compose(look: Look, token: Token = ANYBODY) -> Overview:
    """The overview of a caller with this token."""
    glance = look.glance
    workers = rights.workers_seen(token, glance.workers)
    limits = [use for use in rights.limits_seen(token, glance.limits) if not use.key.startswith(OWN)]
    serving = Counter(queue for worker in workers for queue in worker.queues)
    rules = QueueRules(limits)
    glances = {queue.name: queue for queue in glance.queues if _is_shown(queue.name, token)}
    names = sorted({*glances, *rules.paused, *(queue for queue in serving if _is_shown(queue, token))})
    bounds, counted = bounds_in(limits), _counted(look, workers, token)
    unplaced = placement.by_queue(counted)
    queues = []
    for name in names:
        seen = glances.get(name) or QueueGlance(name=name)
        queue = _queue(seen, rules.pause_of(name), serving[name], look.activity, unplaced.get(name, 0))
        queues.append(_bounded(queue, seen, bound_of(bounds, name), look))
    leader = look.leader if any(worker.worker == look.leader for worker in workers) else None
    shown = replace(look, failing=(), emptied=None, risks=()) if token.queues else look
    unplaced_tasks = tuple(placement.unplaced(counted))
    return Overview(
        at=glance.at,
        cost_ms=round(look.cost * 1000, 3),
        every=look.every,
        totals=_totals(queues, workers, glance.capped),
        queues=queues,
        workers=[_worker(worker, leader) for worker in workers],
        limits=limits,
        leader=leader,
        health=None if token.queues else look.health if look.outage is None else 1,
        rates=Rates() if look.activity is None else look.activity.rates(token.queues),
        notices=notices(shown, queues, workers, limits, unplaced_tasks),
    )


def _is_shown(queue: str, token: Token) -> bool:
    return queue != defaults.SYSTEM_QUEUE and token.sees(queue)


def _counted(look: Look, workers: Sequence[Presence], token: Token) -> Stats:
    """The counts that the token sees, which may be old, with the workers of now."""
    return Stats(counts=tuple(count for count in look.counts if token.sees(count.queue)), workers=tuple(workers))


def _queue(
    glance: QueueGlance, pause: LimitUse | None, workers: int, activity: Activity | None, unplaced: int
) -> QueueOverview:
    counts: Mapping[str, Any] = {name: getattr(glance, name) for name in COUNTS}
    return QueueOverview(
        name=glance.name,
        paused=pause is not None,
        paused_by=None if pause is None else pause.rule.name,
        pauses=[PauseView(reason.why, reason.until) for reason in pause.pauses] if pause is not None else (),
        queued_capped=glance.queued_capped,
        oldest=glance.oldest,
        unplaced=unplaced,
        workers=workers,
        ended_rate=None if activity is None else activity.ended_rate(glance.name),
        spark=[0.0] * PERIODS if activity is None else activity.spark(glance.name),
        **counts,
    )


def _bounded(queue: QueueOverview, glance: QueueGlance, bound: Limit | None, look: Look) -> QueueOverview:
    """The queue with its bound and its filling."""
    if bound is None or bound.max_waiting is None:
        return queue
    filling = filling_of(glance, is_rest_capped(look.glance), look.exact)
    return replace(
        queue,
        max_waiting=bound.max_waiting,
        when_full=bound.when_full,
        filled=filling.jobs,
        filled_capped=filling.capped,
        full=filling.jobs >= bound.max_waiting,
    )


def _totals(queues: Sequence[QueueOverview], workers: Sequence[Presence], capped: Sequence[str]) -> Totals:
    names = (*(("queued",) if any(queue.queued_capped for queue in queues) else ()), *capped)
    sums = {name: sum(getattr(queue, name) for queue in queues) for name in COUNTS}
    return Totals(slots=sum(worker.slots for worker in workers), capped=cast("tuple[Counted, ...]", names), **sums)


def _worker(worker: Presence, leader: str | None) -> WorkerView:
    return WorkerView(**asdict(worker), leader=worker.worker == leader)
