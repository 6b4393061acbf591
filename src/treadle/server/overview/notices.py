"""The notices of an overview: the causes that keep jobs from running, with advice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from treadle.admin import start_worker
from treadle.core.command_lines import command
from treadle.core.limit_model import LimitUse
from treadle.core.model import Presence
from treadle.core.queue_rules import ALL
from treadle.core.similar_names import near
from treadle.server.overview.look import Look
from treadle.server.overview.views import Notice, QueueOverview
from treadle.server.path_parts import path_part

MOST: Final = 50  # notices; a screen does not show more
SLOW: Final = 1.0  # s: if a look takes longer, the storage counts as slow
MISSED: Final = 1 / 3  # share of a worker's ttl without a heartbeat: three heartbeats of a Treadle worker
LEVELS: Final = ("error", "warning", "info")


def notices(
    look: Look,
    queues: Sequence[QueueOverview],
    workers: Sequence[Presence],
    limits: Sequence[LimitUse],
    unplaced: Sequence[tuple[str, str, int]],
) -> list[Notice]:
    """The notices about what the caller may see, errors first; at most MOST of them.

    unplaced  (task, what no running worker has, jobs)
    """
    entries = [
        *_storage(look),
        *_queues(queues, workers),
        *_unplaced(unplaced),
        *_workers(workers),
        *_limits(limits),
        *_schedules(look.failing),
    ]
    return sorted(entries, key=lambda notice: LEVELS.index(notice.level))[:MOST]


def _storage(look: Look) -> Iterator[Notice]:
    if look.moved is not None:
        yield Notice(level="error", text=f"{look.moved}.", advice="Start the server with that URL.", href="health")
    if look.emptied is not None:
        advice = "Look for a flush, an eviction, a fail-over or a dropped schema at that time; restore a backup."
        yield Notice(level="error", text=f"{_sentence(look.emptied)}.", advice=advice, href="health")
    for risk in look.risks:
        yield Notice(
            level="error" if risk.verdict == "fail" else "warning",
            text=f"Jobs may be lost: {risk.text}.",
            advice=f"{_sentence(risk.advice)}.",
            href="health",
        )
    if look.outage is not None:
        yield Notice(
            level="error",
            text=f"The storage has not answered for {_lasts(look.outage)}.",
            advice="The numbers are those of the last answer. The log of the server has the error.",
            href="health",
        )
    elif look.cost >= SLOW:
        yield Notice(
            level="warning",
            text=f"The storage took {_lasts(look.cost)} to answer.",
            advice=f"These numbers are read every {_lasts(look.every)} only. {command('doctor')} checks the storage.",
            href="health",
        )


def _queues(queues: Sequence[QueueOverview], workers: Sequence[Presence]) -> Iterator[Notice]:
    served = [queue for worker in workers for queue in worker.queues]
    for queue in queues:
        jobs = f"{_count(queue.queued, 'queued job', queue.queued_capped)}"
        href = f"queues/{path_part(queue.name)}"
        yield from _full(queue, href)
        if not queue.queued:
            continue
        if queue.paused:
            rest = next((pause.until for pause in queue.pauses if pause.why == "held"), None)
            is_rest = rest is not None and len(queue.pauses) == 1
            yield Notice(
                level="info" if is_rest else "warning",
                text=f"Queue {queue.name!r} {'rests, as a job asked,' if is_rest else 'is paused'} with {jobs}.",
                advice=_resumes(queue, is_rest),
                href=href,
            )
        elif not queue.workers:
            yield Notice(
                level="warning",
                text=f"No worker serves queue {queue.name!r}, which has {jobs}{near(queue.name, served) or '.'}",
                advice=f"Start one: {start_worker(queue.name, app='module:app')}.",
                href=href,
            )


def _resumes(queue: QueueOverview, is_rest: bool) -> str:
    if is_rest:
        return "It resumes by itself."
    if queue.paused_by == ALL:
        return f"Resume the limit {ALL!r}, which pauses each queue without a limit of its own."
    return "Resume the queue to run them."


def _full(queue: QueueOverview, href: str) -> Iterator[Notice]:
    """A notice for a queue that has as many jobs to be started as its bound allows."""
    if queue.full and queue.filled is not None:
        does = "refuses new jobs" if queue.when_full == "refuse" else "cancels queued jobs for new ones"
        jobs = _count(queue.filled, "waiting job", queue.filled_capped)
        yield Notice(
            level="warning",
            text=f"Queue {queue.name!r} is full with {jobs} and {does}.",
            advice="Add workers, or raise the bound of the queue.",
            href=href,
        )


def _unplaced(unplaced: Sequence[tuple[str, str, int]]) -> Iterator[Notice]:
    for task, lack, jobs in unplaced:
        what, _, advice = lack.partition(": ")
        yield Notice(
            level="warning",
            text=f"No worker can run {_count(jobs, 'job')} of task {task!r}: {what}.",
            advice=f"{_sentence(advice)}.",
            href=f"jobs?task={quote(task, safe='')}",
        )


def _workers(workers: Sequence[Presence]) -> Iterator[Notice]:
    for worker in workers:
        if worker.age > worker.ttl * MISSED:
            yield Notice(
                level="warning",
                text=f"Worker {worker.worker!r} sent its last heartbeat {_lasts(worker.age)} ago.",
                advice="If it is gone, its jobs start again when their leases have expired.",
                href=f"workers/{path_part(worker.worker)}",
            )


def _limits(limits: Sequence[LimitUse]) -> Iterator[Notice]:
    for use in limits:
        if use.rule.slots != 0 or not use.blocked or use.key.startswith("queue:"):
            continue
        is_rest = bool(use.pauses) and all(pause.why == "held" for pause in use.pauses)
        what = "rests, as a job asked," if is_rest else "is paused" if use.pauses else "has 0 slots"
        yield Notice(
            level="info" if is_rest else "warning",
            text=f"Limit {use.key!r} {what} and blocks {_count(use.blocked, 'job')}.",
            advice="It resumes by itself." if is_rest else "Resume the limit, or give it slots.",
            href="limits",
        )


def _schedules(failing: Sequence[str]) -> Iterator[Notice]:
    for name in failing:
        yield Notice(
            level="error",
            text=f"Schedule {name!r} could not enqueue its last job.",
            advice="Its page has the error.",
            href=f"schedules/{path_part(name)}",
        )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _count(number: int, what: str, capped: bool = False) -> str:
    return f"{number:,}{'+' if capped else ''} {what}{'' if number == 1 else 's'}"


def _lasts(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
