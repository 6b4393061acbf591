"""The stored jobs, queues, workers, limits, schedules and the outbox, as samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from treadle.core import defaults
from treadle.core.limit_model import LimitUse
from treadle.core.model import Presence, State
from treadle.core.query_model import Count, Stats
from treadle.core.queue_rules import OF, QueueRules
from treadle.scheduling import Schedule
from treadle.server.prometheus import catalogue
from treadle.server.prometheus.samples import Names, Samples
from treadle.storage import bound_of, bounds_in

if TYPE_CHECKING:
    from treadle.outbox import OutboxStats

STATES: Final = tuple(state.value for state in State)


class Reading(Struct, frozen=True, kw_only=True):
    """One read of everything that is stored.

    schedules  None: the reader has no right to them
    outbox     its rows; None: there is no outbox, or its database did not answer
    outbox_up  whether it answered; None: there is no outbox
    queues     queues to show even without jobs
    took       seconds that the read took
    """

    stats: Stats = Stats()
    schedules: Sequence[Schedule] | None = None
    outbox: OutboxStats | None = None
    outbox_up: bool | None = None
    queues: Sequence[str] = ()
    took: float = 0.0


class Scrape(Struct, frozen=True, kw_only=True):
    """The newest reading, and whether the storage answers now.

    reading  None: no read has succeeded yet
    age      seconds since the reading
    error    why the last read failed
    """

    reading: Reading | None
    age: float
    up: bool
    error: str | None = None


def stored_samples(scrape: Scrape, names: Names) -> Samples:
    """The samples of a scrape."""
    samples, reading = Samples(), scrape.reading
    if reading is not None:
        stats = reading.stats
        rules = QueueRules(stats.limits)
        _jobs(samples, names, [count for count in stats.counts if count.queue != defaults.SYSTEM_QUEUE and count.task])
        _queues(samples, names, stats, rules, reading.queues)
        _workers(samples, stats.workers)
        _limits(samples, names, [use for use in stats.limits if not _is_pause(use) or use.behind is not None])
        _schedules(samples, names, reading.schedules or ())
        _outbox(samples, reading)
        samples.add(catalogue.STATS_SECONDS, reading.took)
        samples.add(catalogue.STATS_AGE, scrape.age)
    samples.add(catalogue.STORAGE_UP, scrape.up)
    return samples


def _is_pause(use: LimitUse) -> bool:
    return use.key.startswith(OF) and use.rule.slots == 0


def _jobs(samples: Samples, names: Names, counts: Iterable[Count]) -> None:
    for count in counts:
        pair = names.pair(count.queue, count.task)
        for state in STATES:  # also 0: a series that ends would leave a gap in place of the last job
            samples.add(catalogue.JOBS, count.jobs if count.state.value == state else 0, *pair, state)
        samples.add(catalogue.QUEUED, count.queued, *pair)
        samples.add(catalogue.BLOCKED, count.blocked, *pair)


def _queues(samples: Samples, names: Names, stats: Stats, rules: QueueRules, declared: Sequence[str]) -> None:
    oldest = dict.fromkeys(declared, 0.0)
    oldest |= {name: 0.0 for worker in stats.workers for name in worker.queues}
    oldest |= dict.fromkeys(rules.paused, 0.0)
    for count in stats.counts:
        oldest[count.queue] = max(oldest.get(count.queue, 0.0), count.oldest or 0.0)
    serving = [name for worker in stats.workers for name in worker.queues]
    bounds = bounds_in(stats.limits)
    for queue, seconds in sorted(oldest.items()):
        if queue != defaults.SYSTEM_QUEUE:
            label = names.one("queue", queue)
            samples.add(catalogue.OLDEST, seconds, label)
            samples.add(catalogue.PAUSED, rules.pause_of(queue) is not None, label)
            if (rule := bound_of(bounds, queue)) is not None and rule.max_waiting is not None:
                samples.add(catalogue.MAX_WAITING, rule.max_waiting, label)
            samples.add(catalogue.QUEUE_WORKERS, serving.count(queue), label)


def _workers(samples: Samples, workers: Sequence[Presence]) -> None:
    samples.add(catalogue.WORKERS, len(workers))
    samples.add(catalogue.WORKER_SLOTS, sum(worker.slots for worker in workers))
    samples.add(catalogue.WORKER_RUNNING, sum(worker.running for worker in workers))


def _limits(samples: Samples, names: Names, limits: Iterable[LimitUse]) -> None:
    for use in limits:
        rule = use.behind or use.rule
        label = names.one("limit", _shown(use.key, rule.name))
        if rule.slots is not None:
            samples.add(catalogue.LIMIT_SLOTS, rule.slots, label)
        samples.add(catalogue.LIMIT_USED, use.used, label)
        samples.add(catalogue.LIMIT_PARTITIONS, bool(use.used or use.blocked), label)
        samples.add(catalogue.LIMIT_BLOCKED, use.blocked, label)
        samples.add(catalogue.LIMIT_PAUSED, bool(use.pauses) or use.rule.slots == 0, label)


def _shown(key: str, rule: str) -> str:
    """The name of a limit without its partition; but the limit of a queue or a task keeps its full name."""
    kind = key.partition(":")[0]
    return key if kind in ("queue", "task") and rule == key else kind


def _schedules(samples: Samples, names: Names, schedules: Iterable[Schedule]) -> None:
    for schedule in schedules:
        label = names.one("schedule", schedule.name)
        if schedule.next_at is not None:
            samples.add(catalogue.SCHEDULE_NEXT, schedule.next_at.timestamp(), label)
        samples.add(catalogue.SCHEDULE_PAUSED, schedule.paused, label)
        samples.add(catalogue.SCHEDULE_FAILING, schedule.error is not None, label)


def _outbox(samples: Samples, reading: Reading) -> None:
    if reading.outbox_up is not None:
        samples.add(catalogue.OUTBOX_UP, reading.outbox_up)
    outbox = reading.outbox
    if outbox is not None:
        samples.add(catalogue.OUTBOX_ROWS, outbox.rows)
        samples.add(catalogue.OUTBOX_OLDEST, outbox.oldest)
        samples.add(catalogue.OUTBOX_FAILING, outbox.failing)
        samples.add(catalogue.OUTBOX_GIVEN_UP, outbox.given_up)
        samples.add(catalogue.OUTBOX_RELAYED, outbox.relay is not None)
