"""Makes the overview of a caller from one look and its rights. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from treadle.core import defaults
from treadle.core.limit_model import LimitUse
from treadle.core.model import Presence
from treadle.core.query_model import Glance, QueueGlance
from treadle.core.ranges import OWN
from treadle.server.auth import rights
from treadle.server.auth.tokens import ANYBODY, Token
from treadle.server.overview.activity import PERIODS, Activity
from treadle.server.overview.notices import Facts, notices
from treadle.server.overview.views import Overview, PauseView, QueueOverview, Rates, Totals, WorkerView
from treadle.storage.bounds import Bounds, bound_of, bounds_in

COUNTS: Final = ("queued", "running", "scheduled", "blocked", "waiting", "failed")


class Look(Struct, frozen=True, kw_only=True):
    """The data of one look.

    cost      seconds that it took
    every     seconds until the next one
    leader    the worker that does the maintenance
    activity  rates and times of the last minutes; None: no metrics
    failing   names of the schedules whose last job could not be enqueued
    outage    seconds for which the storage has not answered; `glance` is then the last one that succeeded
    moved     where the jobs of the storage have moved
    """

    glance: Glance
    cost: float = 0.0
    every: float = 2.0
    leader: str | None = None
    activity: Activity | None = None
    failing: Sequence[str] = ()
    outage: float | None = None
    moved: str | None = None


def compose(look: Look, token: Token = ANYBODY) -> Overview:
    """The overview of a caller with this token."""
    glance = look.glance
    workers = rights.workers_seen(token, glance.workers)
    limits = [use for use in rights.limits_seen(token, glance.limits) if not use.key.startswith(OWN)]
    serving = Counter(queue for worker in workers for queue in worker.queues)
    pauses = paused_queues(limits)
    found = {each.name: each for each in glance.queues if _is_shown(each.name, token)}
    names = sorted({*found, *pauses, *(queue for queue in serving if _is_shown(queue, token))})
    activity, bounds = look.activity, bounds_in(limits)
    queues = [
        _queue(found.get(name) or QueueGlance(name=name), pauses.get(name), serving[name], activity, bounds)
        for name in names
    ]
    leader = look.leader if any(each.worker == look.leader for each in workers) else None
    facts = Facts(
        queues=queues,
        workers=workers,
        limits=limits,
        failing=() if token.queues else look.failing,
        cost=look.cost,
        every=look.every,
        outage=look.outage,
        moved=look.moved,
    )
    return Overview(
        at=glance.at,
        cost_ms=round(look.cost * 1000, 3),
        every=look.every,
        totals=_totals(queues, workers, glance.capped),
        queues=queues,
        workers=[_worker(each, leader) for each in workers],
        limits=limits,
        leader=leader,
        rates=Rates() if activity is None else activity.rates(token.queues),
        notices=notices(facts),
    )


def _is_shown(queue: str, token: Token) -> bool:
    return queue != defaults.SYSTEM_QUEUE and token.sees(queue)


def paused_queues(limits: Sequence[LimitUse]) -> dict[str, LimitUse]:
    """The limits of paused queues, by the name of the queue."""
    return {
        use.key.removeprefix("queue:"): use for use in limits if use.key.startswith("queue:") and use.rule.slots == 0
    }


def _queue(
    glance: QueueGlance, pause: LimitUse | None, workers: int, activity: Activity | None, bounds: Bounds
) -> QueueOverview:
    counts: Mapping[str, int] = {name: getattr(glance, name) for name in COUNTS}
    bound = bound_of(bounds, glance.name)
    return QueueOverview(
        name=glance.name,
        paused=pause is not None,
        pauses=[PauseView(each.why, each.until) for each in pause.pauses] if pause is not None else (),
        queued_capped=glance.queued_capped,
        oldest=glance.oldest,
        max_waiting=None if bound is None else bound.max_waiting,
        when_full=None if bound is None else bound.when_full,
        workers=workers,
        ended_rate=None if activity is None else activity.ended_rate(glance.name),
        spark=[0.0] * PERIODS if activity is None else activity.spark(glance.name),
        **counts,
    )


def _totals(queues: Sequence[QueueOverview], workers: Sequence[Presence], capped: Sequence[str]) -> Totals:
    more = ("queued",) if any(queue.queued_capped for queue in queues) else ()
    sums = {name: sum(getattr(queue, name) for queue in queues) for name in COUNTS}
    return Totals(slots=sum(worker.slots for worker in workers), capped=(*more, *capped), **sums)


def _worker(worker: Presence, leader: str | None) -> WorkerView:
    return WorkerView(**asdict(worker), leader=worker.worker == leader)
