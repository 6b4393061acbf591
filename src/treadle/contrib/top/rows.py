"""The rows of each panel, from a snapshot. Pure: the same snapshot gives the same rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from treadle.admin.failure_groups import FailureGroups
from treadle.cli.output import age, lasts
from treadle.contrib.top.grid import Cell, Column, Row, Tone, cell, gauge, spark
from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.placement_words import has_words
from treadle.core.queue_rules import ALL, OF, QueueRules
from treadle.server.overview import Overview, QueueOverview, WorkerView

SPARK: Final = 15  # cells: 20 s in each
SILENT: Final = 1 / 3  # share of a worker's ttl without a heartbeat: three heartbeats of a Treadle worker

QUEUES: Final = (
    Column(name="queue", stretch=True, least=10, most=36),
    Column(name="state", rank=1, most=20),
    Column(name="queued", right=True),
    Column(name="oldest", rank=3, right=True),
    Column(name="running", rank=1, right=True),
    Column(name="scheduled", rank=8, right=True),
    Column(name="blocked", rank=5, right=True),
    Column(name="waiting", rank=9, right=True),
    Column(name="failed", rank=2, right=True),
    Column(name="bound", rank=6, right=True, optional=True),
    Column(name="workers", rank=7, right=True),
    Column(name="ended/s", rank=4, right=True),
    Column(name="last 5 minutes", rank=6, most=SPARK),
)
FAILURES: Final = (
    Column(name="jobs", right=True),
    Column(name="task", stretch=True, least=10, most=30),
    Column(name="queue", rank=3, most=20),
    Column(name="last", rank=1, right=True),
    Column(name="over time", rank=4, most=12),
    Column(name="error", rank=2, stretch=True, least=30, most=200),
)
LIMITS: Final = (
    Column(name="limit", stretch=True, least=10, most=32),
    Column(name="slots", rank=1, right=True, most=14),
    Column(name="in use", rank=4, most=8),
    Column(name="blocked", right=True),
    Column(name="rate", rank=3, right=True, most=20),
    Column(name="why", rank=2, stretch=True, least=14, most=60),
)
WORKERS: Final = (
    Column(name="worker", stretch=True, least=10, most=36),
    Column(name="slots", right=True),
    Column(name="in use", rank=4, most=8),
    Column(name="state", rank=1, most=20),
    Column(name="queues", rank=2, stretch=True, least=8, most=40),
    Column(name="up for", rank=5, right=True),
    Column(name="labels", rank=3, stretch=True, most=40, optional=True),
    Column(name="host", rank=6, most=24),
)


def count(number: int, capped: bool = False, tone: Tone = "") -> Cell:
    """A count; 0 is dim. capped: there are at least this many."""
    return Cell(f"{number:,}{'+' if capped else ''}", tone if number else "dim")


def queues(overview: Overview) -> list[Row]:
    capped = set(overview.totals.capped)
    return [Row(queue.name, _queue(queue, capped), queue) for queue in overview.queues]


def _queue(queue: QueueOverview, capped: Collection[str]) -> tuple[Cell, ...]:
    return (
        cell(queue.name, "strong"),
        _state(queue),
        count(queue.queued, queue.queued_capped),
        cell("-", "dim") if queue.oldest is None else cell(lasts(queue.oldest)),
        count(queue.running, "running" in capped, "busy"),
        count(queue.scheduled, "scheduled" in capped),
        count(queue.blocked, "blocked" in capped, "warn"),
        count(queue.waiting, "waiting" in capped),
        count(queue.failed, "failed" in capped, "bad"),
        _bound(queue),
        count(queue.workers),
        cell("-", "dim") if queue.ended_rate is None else _rate(queue.ended_rate),
        Cell(spark(queue.spark, SPARK), "busy" if any(queue.spark) else "dim"),
    )


def _state(queue: QueueOverview) -> Cell:
    if queue.paused:
        return cell(
            "rests" if queue.pauses and all(pause.why == "held" for pause in queue.pauses) else "‖ paused", "warn"
        )
    is_unserved = bool(queue.queued) and not queue.workers
    if queue.full:
        return cell("! full, no worker" if is_unserved else "! full", "bad")
    if is_unserved:
        return cell("! no worker", "bad")
    if queue.unplaced:
        return cell(f"! {queue.unplaced:,} unplaced", "bad")
    return cell("open", "dim")


def _bound(queue: QueueOverview) -> Cell:
    """The waiting jobs of a bounded queue, and how many it may have."""
    if queue.max_waiting is None or queue.filled is None:
        return cell("")
    more = "+" if queue.filled_capped else ""
    return Cell(f"{queue.filled:,}{more}/{queue.max_waiting:,}", "bad" if queue.full else "")


def _rate(value: float) -> Cell:
    return Cell(f"{value:,.0f}" if value >= 100 else f"{value:.1f}", "" if value else "dim")


def failures(grouped: FailureGroups, now: float) -> list[Row]:
    return [
        Row(
            group.key,
            (
                count(group.jobs, tone="bad"),
                cell(group.task, "strong"),
                cell(group.queue),
                cell(age(group.last, now)),
                Cell(spark(group.spark, 12), "bad"),
                cell(group.signature or "no error text"),
            ),
            group,
        )
        for group in grouped.groups
    ]


def limits(overview: Overview) -> list[Row]:
    """Those that block jobs come first."""
    uses, rules = sorted(overview.limits, key=lambda use: (-use.blocked, use.key)), QueueRules(overview.limits)
    full = [(queue.name, use.rule.name) for queue in overview.queues if queue.full and (use := rules.of(queue.name))]
    return [Row(use.key, _limit(use, overview.at, full), use) for use in uses]


def _limit(use: LimitUse, now: float, full_queues: Sequence[tuple[str, str]]) -> tuple[Cell, ...]:
    """full_queues: (full queue, the name of its limit)"""
    rule = use.rule
    if use.pauses:  # a paused limit has 0 slots; shown is the rule that applies when it is resumed
        rule = use.behind or Limit(rule.name)
    slots = rule.slots
    full = slots is not None and use.used >= slots
    return (
        cell(use.key, "strong"),
        cell("-", "dim") if slots is None else cell(f"{use.used:,}/{slots:,}"),
        Cell(gauge(use.used, slots or 0), "warn" if full else "busy"),
        count(use.blocked, tone="warn"),
        cell("-", "dim") if rule.rate is None else cell(f"{use.starts:,}/{rule.rate:,} in {lasts(rule.per)}"),
        _why(use, now, full_queues),
    )


def _why(use: LimitUse, now: float, full_queues: Sequence[tuple[str, str]]) -> Cell:
    """Why the limit lets no job start now, or why its queue accepts no new job."""
    if use.pauses:
        return _paused(use.pauses, now)
    if use.rule.slots == 0:
        return cell("0 slots", "warn")
    if use.next_start is not None:
        return cell(f"rate used up, next start {age(use.next_start, now)}", "warn")
    if use.rule.slots is not None and use.used >= use.rule.slots:
        return cell("all slots in use", "warn")
    full = [queue for queue, name in full_queues if use.key in (name, f"{OF}{queue}")]
    if full:
        return cell(f"full: {', '.join(full)}" if use.key == ALL else "full", "bad")
    return cell("has room", "dim")


def _paused(pauses: Sequence[Pause], now: float) -> Cell:
    if any(pause.why == "paused" for pause in pauses):
        return cell("‖ paused by an operator", "warn")
    ends = max((pause.until for pause in pauses if pause.until is not None), default=None)
    return cell("rests, as a job asked" + ("" if ends is None else f", ends {age(ends, now)}"), "warn")


def workers(overview: Overview) -> list[Row]:
    return [Row(worker.worker, _worker(worker), worker) for worker in overview.workers]


def _worker(worker: WorkerView) -> tuple[Cell, ...]:
    return (
        cell(worker.worker, "strong"),
        cell(f"{worker.running:,}/{worker.slots:,}"),
        Cell(gauge(worker.running, worker.slots), "busy"),
        _liveness(worker),
        cell(", ".join(worker.queues)),
        cell(lasts(worker.uptime)),
        cell(has_words(worker)),
        cell(f"{worker.host}:{worker.pid}" if worker.pid else worker.host, "dim"),
    )


def _liveness(worker: WorkerView) -> Cell:
    if worker.age > worker.ttl * SILENT:
        return cell(f"! silent for {lasts(worker.age)}", "bad")
    if worker.paused > worker.age:
        return cell(f"throttled, {lasts(worker.paused - worker.age)}", "warn")
    if worker.reserved:
        return cell(f"keeps room for {worker.reserved}", "warn")
    return cell("leads" if worker.leader else "ready" if worker.running < worker.slots else "full", "good")
