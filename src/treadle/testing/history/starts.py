"""The checker's rules about when jobs start: delays, the queue order with its priorities and lanes, and schedules.

A start is judged by the first entry of its claim. These rules are skipped if the clock was set. Where claims overlap,
each skips rows that another has locked: a job counts as passed over only if its own claim was called after the answer
to the other one, and if no other claim may have held its row meanwhile.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from treadle.core.model import Record
from treadle.storage.row_rules import rank, turn
from treadle.testing.history.evidence import EPSILON, TOLERANCE, Evidence, Violation

TICK = "cron:"  # begins the id of a tick, which ends with its moment


def check(it: Evidence, schedules: Mapping[str, float]) -> Iterator[Violation]:
    """Apply all rules of this module."""
    yield from repeated_ticks(it)
    if it.steps_of_clock:
        return
    yield from delays(it)
    stays = list(_stays(it))
    yield from order(it, stays)
    yield from ageing(it, stays)
    yield from priorities(it, stays)
    yield from lanes(it, stays)
    yield from early_ticks(it)
    yield from ticks_left_out(it, schedules)


def delays(it: Evidence) -> Iterator[Violation]:
    """No job is claimed before its delay is over, counted from the beginning of its enqueue."""
    for (id, version), claimed in it.claims.items():
        row, request = it.rows.get(id), it.asked.get(id)
        if row is None or request is None or row.reopenings or row.job.function_done or it.acts_on(id):
            continue  # an act may have let it run at once
        early = request.at + row.job.delay - claimed
        if row.job.delay and early > TOLERANCE:
            text = f"version {version} of {id}, enqueued with a delay of {row.job.delay:g} s, was claimed {early:g} s"
            yield it.violation("delay", f"{text} too early", id)


# --- the order of a queue


_Call = tuple[float, float, str, int]  # when it was called and answered, and the version that it claimed


class _Stay(Struct):
    """A job that was certainly queued from the answer to its enqueue to its first claim.

    since, until  when that claim was called and answered; both are its moment where claims do not overlap
    """

    id: str
    row: Record
    enqueued: float
    stored: float
    since: float
    until: float


def _stays(it: Evidence) -> Iterator[_Stay]:
    """Nothing holds these jobs back but jobs before them: no limit, no delay, no other job."""
    stored: dict[str, float] = {}
    for entry in it.entries:
        if entry.what == "stored" and not entry.name:
            stored.setdefault(entry.id, entry.at)
    for id, moment in stored.items():
        row, request = it.rows.get(id), it.asked.get(id)
        if row is not None and request is not None and (id, 1) in it.claimed and _plain(row):
            yield _Stay(id, row, request.at, moment, *it.call(id, 1))


def _plain(row: Record) -> bool:
    job = row.job
    held_back = job.delay or job.after or job.key or job.parent or job.function_done or row.reopenings
    # a job that a limit blocks leaves its lane
    return not (held_back or (job.lane and job.limits))


def order(it: Evidence, stays: Sequence[_Stay]) -> Iterator[Violation]:
    """Of jobs that differ only in cost and in when they were enqueued, the one acknowledged first is claimed first. So
    they run strictly in sequence under a limit of one slot."""
    lines: dict[object, list[_Stay]] = {}
    for stay in stays:
        job = stay.row.job
        if job.aging:
            continue
        limits = tuple(name for name, _ in job.limits)
        lines.setdefault((job.task, job.queue, job.priority, limits, job.lane), []).append(stay)
    for line in lines.values():
        yield from _overtaken(it, line)


def ageing(it: Evidence, stays: Sequence[_Stay]) -> Iterator[Violation]:
    """Of jobs of one task that age, each step of priority counts as `aging` seconds of waiting."""
    lines: dict[tuple[str, str], list[_Stay]] = defaultdict(list)
    for stay in stays:
        job = stay.row.job
        if job.aging and not job.lane and not job.limits:
            lines[job.queue, job.task].append(stay)
    for line in lines.values():
        coming, queued = sorted(line, key=lambda stay: stay.stored, reverse=True), list[tuple[float, float, str]]()
        for stay in sorted(line, key=lambda stay: stay.since):
            while coming and coming[-1].stored < stay.since - TOLERANCE:
                one = coming.pop()
                heapq.heappush(queued, (turn(one.row.job, one.stored), one.since, one.id))
            while queued and queued[0][1] <= stay.until + TOLERANCE:
                heapq.heappop(queued)
            passed = queued and queued[0][0] < turn(stay.row.job, stay.enqueued) - TOLERANCE
            if passed and not it.disturbed(stay.id, 1):
                first = queued[0][2]
                text = f"{stay.id} was claimed before {first}, which was queued and comes first by its age"
                yield it.violation("order", text, first, stay.id)
                return


def _overtaken(it: Evidence, line: list[_Stay]) -> Iterator[Violation]:
    """The first job that was claimed before an equal one that was already stored when this one was enqueued. Jobs that
    were enqueued at the same time have the same place in their queue: ids decide (law 2)."""
    waiting = sorted(line, key=lambda stay: (stay.stored, stay.id))
    latest, index = (0.0, ""), 0
    for stay in sorted(line, key=lambda stay: stay.enqueued):
        while index < len(waiting) and waiting[index].stored < stay.enqueued - EPSILON:
            latest, index = max(latest, (waiting[index].since, waiting[index].id)), index + 1
        if latest[0] > stay.until and not it.disturbed(stay.id, 1):
            text = f"{stay.id} was claimed before {latest[1]}, which was already stored when {stay.id} was enqueued"
            yield it.violation("order", text, latest[1], stay.id)
            return


def priorities(it: Evidence, stays: Sequence[_Stay]) -> Iterator[Violation]:
    """No job is claimed while one of the same task and a higher priority is queued that nothing else holds back. Jobs
    of other tasks are not compared: the worker may have had no room for them."""
    queued: dict[tuple[str, str], list[_Stay]] = defaultdict(list)
    for stay in stays:
        if not stay.row.job.limits:
            queued[stay.row.job.queue, stay.row.job.task].append(stay)
    claims: dict[tuple[str, str], list[_Call]] = defaultdict(list)
    for id, version in it.claimed:
        row = it.rows.get(id)
        if row is not None and not row.function_done and not row.job.function_done:
            claims[row.job.queue, row.job.task].append((*it.call(id, version), id, version))
    for line, equal in queued.items():
        if len({rank(it.rows[id].job) for _, _, id, _ in claims[line]}) > 1:
            yield from _passed_over(it, equal, sorted(claims[line]))


def _passed_over(it: Evidence, stays: list[_Stay], claims: list[_Call]) -> Iterator[Violation]:
    """The first claim of a line that passed over a job of a higher priority."""
    coming = sorted(stays, key=lambda stay: stay.stored, reverse=True)
    latest: dict[int, tuple[float, str]] = {}  # rank -> the last claim of a job that was stored by then
    for since, until, id, version in claims:
        while coming and coming[-1].stored < since - TOLERANCE:
            stay = coming.pop()
            its = rank(stay.row.job)
            latest[its] = max(latest.get(its, (0.0, "")), (stay.since, stay.id))
        low = rank(it.rows[id].job)
        claimed, passed = max((claim for its, claim in latest.items() if its > low), default=(0.0, ""))
        if claimed > until + TOLERANCE and not it.disturbed(id, version):
            text = f"{id} was claimed before {passed}, which has a higher priority and was queued"
            yield it.violation("priority", text, passed, id)
            return


def lanes(it: Evidence, stays: Sequence[_Stay]) -> Iterator[Violation]:
    """The first job of a lane goes to the head of its queue: it is claimed before the second job that any other lane
    had when it was enqueued. Later jobs of a lane have positions that depend on what was claimed meanwhile, so that no
    history shows them; the rule `order` compares the jobs of one lane."""
    groups: dict[tuple[str, str, int], list[_Stay]] = defaultdict(list)
    for stay in stays:
        job = stay.row.job
        if job.lane and not job.limits and not job.aging:
            groups[job.queue, job.task, rank(job)].append(stay)
    if not any(len({stay.row.job.lane for stay in group}) > 1 for group in groups.values()):
        return
    ends = {entry.id: entry.at for entry in it.entries if entry.what == "settled"}
    members: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for id, row in it.rows.items():
        if row.job.lane:
            members[row.job.queue, rank(row.job), row.job.lane].append(id)
    for group in groups.values():
        for first in group:
            job = first.row.job
            others = members[job.queue, rank(job), job.lane or ""]
            if all(id == first.id or _elsewhere(it, id, first, ends) for id in others):
                yield from _kept_behind(it, first, group)


def _elsewhere(it: Evidence, id: str, first: _Stay, ends: Mapping[str, float]) -> bool:
    """Whether a job of the same lane had ended when the first one was enqueued, or came later."""
    request, row = it.asked.get(id), it.rows[id]
    if request is not None and request.at > first.stored:
        return True
    return not row.reopenings and ends.get(id, first.enqueued) < first.enqueued


def _kept_behind(it: Evidence, first: _Stay, group: list[_Stay]) -> Iterator[Violation]:
    """The jobs of other lanes that were claimed before the first one of its lane, although they were not the first."""
    before: dict[str, list[_Stay]] = defaultdict(list)
    for stay in sorted(group, key=lambda stay: stay.stored):
        lane = stay.row.job.lane or ""
        if lane == first.row.job.lane or stay.stored >= first.enqueued or stay.since <= first.stored:
            continue
        passed = stay.until < first.since - TOLERANCE and any(
            earlier.stored < stay.enqueued for earlier in before[lane]
        )
        if passed and not it.disturbed(stay.id, 1):
            text = f"{stay.id} of the lane {lane} was claimed before {first.id}, the first of its lane"
            yield it.violation("lane", text, first.id, before[lane][0].id, stay.id)
            return
        before[lane].append(stay)


# --- schedules


def _ticks(it: Evidence) -> Iterator[tuple[str, float | None, str]]:
    """The name of the schedule, the moment and the id of each tick; None: the id has no moment."""
    for id in it.rows:
        if id.startswith(TICK):
            name, _, word = id.removeprefix(TICK).rpartition(":")
            yield name, _moment(word), id


@lru_cache(10_000)  # several rules read each moment
def _moment(word: str) -> float | None:
    form = "%Y%m%dT%H%M%S.%fZ" if "." in word else "%Y%m%dT%H%M%SZ"
    try:
        return datetime.strptime(word, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def repeated_ticks(it: Evidence) -> Iterator[Violation]:
    """Each moment of a schedule has one job."""
    for _, moment, id in _ticks(it):
        if moment is None:
            yield it.violation("tick", f"{id} is a second job for a moment of the schedule", id)


def early_ticks(it: Evidence) -> Iterator[Violation]:
    """No tick starts before its moment."""
    for _, moment, id in _ticks(it):
        row = it.rows[id]
        if moment is not None and row.started_at is not None and row.started_at < moment - TOLERANCE:
            yield it.violation("tick", f"{id} started {moment - row.started_at:g} s before its moment", id)


def ticks_left_out(it: Evidence, schedules: Mapping[str, float]) -> Iterator[Violation]:
    """The ticks of these schedules are as many seconds apart as the schedule says."""
    moments: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, moment, id in _ticks(it):
        if moment is not None and name in schedules:
            moments[name].append((moment, id))
    for name, ticks in moments.items():
        for (one, early), (other, late) in pairwise(sorted(ticks)):
            if abs(other - one - schedules[name]) > TOLERANCE:
                text = f"{early} and {late} are {other - one:g} s apart, expected {schedules[name]:g} s"
                yield it.violation("tick", text, early, late)
