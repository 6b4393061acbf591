"""The checker's rules that compare jobs with each other: limits, keys, and upstream jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from treadle.core.limit_model import Limit
from treadle.core.model import FINAL, SUPERSEDED, UPSTREAM, Record, State
from treadle.storage import capacity, rule_for
from treadle.testing.history.entries import moments
from treadle.testing.history.evidence import EPSILON, TOLERANCE, Evidence, Run, Violation, first_excess

ONE_RUN = 2  # the version of a job after one claim and one outcome


def check(it: Evidence) -> Iterator[Violation]:
    """Apply all rules of this module."""
    yield from slots(it)
    yield from rates(it)
    yield from slots_left(it)
    yield from keys(it)
    yield from keys_kept(it)
    yield from upstreams(it)
    yield from failed_upstreams(it)


def _rules(it: Evidence) -> dict[str, Limit]:
    """The rules that were in force all the time: no entry records a change of them."""
    changed = {entry.name for entry in it.entries if entry.what == "act" and entry.facts.get("limit")}
    return {use.key: use.rule for use in it.limits if use.key not in changed and not use.pauses}


def _named(it: Evidence, id: str) -> tuple[tuple[str, int], ...]:
    """The limits that a start of this job counts against: its own, and that of its queue."""
    row = it.rows.get(id)
    return () if row is None else (*row.job.limits, (f"queue:{row.job.queue}", 1))


def slots(it: Evidence) -> Iterator[Violation]:
    """The jobs that certainly hold leases never use more slots of a limit than it has."""
    rules = _rules(it)
    for name, runs in _by_limit(it).items():
        rule = rule_for(rules, name)
        if rule is None or rule.slots is None:
            continue
        if rule.hold == "ended":
            runs = _whole(it, runs)
        periods = ((run.held_from, run.held_to, min(max(cost, 1), rule.slots), run.id) for run, cost in runs)
        used, ids = first_excess(periods, rule.slots)
        if used:
            yield it.violation("slots", f"{used} of {rule.slots} slots of {name} were in use", *ids)
            return


def _by_limit(it: Evidence) -> dict[str, list[tuple[Run, int]]]:
    by_limit: dict[str, list[tuple[Run, int]]] = {}
    for run in sorted(it.runs, key=lambda run: run.held_from):
        if run.held_to > run.held_from:
            for name, cost in _named(it, run.id):
                by_limit.setdefault(name, []).append((run, cost))
    return by_limit


def _whole(it: Evidence, runs: list[tuple[Run, int]]) -> list[tuple[Run, int]]:
    """The first run of each job, held until its last run: under such a limit a job keeps its slot until it has ended.
    Acts may have ended it earlier."""
    whole: dict[str, tuple[Run, int]] = {}
    for run, cost in runs:
        if run.id in whole and not it.acts_on(run.id):
            first, _ = whole[run.id]
            whole[run.id] = replace(first, held_to=max(first.held_to, run.held_to)), cost
        else:
            whole.setdefault(run.id, (run, cost))
    return list(whole.values())


class _Start(NamedTuple):
    """A claim that a rate counts.

    cost     what it reserved
    least    what counts of it in any case, whatever of its run was stored
    real     what counts since `stored`, if that is more
    called   when the claim was called
    """

    moment: float
    id: str
    cost: int
    least: int
    real: int
    stored: float
    called: float

    def counted(self, called: float) -> int:
        """The cost that a claim which was called then must have counted."""
        return max(self.least, self.real) if self.stored < called else self.least


def rates(it: Evidence) -> Iterator[Violation]:
    """No claim starts a job that does not fit into what its rate has left: a window without the starts that count, or a
    bucket with what it was refilled with. Judged by claim times; skipped if the clock was set."""
    if it.steps_of_clock:
        return
    rules, starts = _rules(it), dict[str, list[_Start]]()
    stored = {**moments(it.entries, "again"), **moments(it.entries, "settled")}
    for key, moment in it.claims.items():
        row, costs = it.rows.get(key[0]), it.spent.get(key, {})
        if row is not None and not row.job.function_done and not row.function_done:
            for name, cost in _named(it, key[0]):
                real, since = costs.get(name, cost), stored.get(key, inf)
                start = _Start(moment, key[0], cost, min(cost, real), real, since, it.call(*key)[0])
                starts.setdefault(name, []).append(start)
    for name, counted in starts.items():
        rule = rule_for(rules, name)
        if rule is not None and rule.rate:
            counted.sort(key=lambda start: start.moment)
            broken = next((_too_many if rule.how == "window" else _too_fast)(rule, counted), None)
            if broken is not None:
                text, *ids = broken
                yield it.violation("rate", f"{text} of {name}", *ids)
                return


def _too_many(rule: Limit, starts: list[_Start]) -> Iterator[tuple[str, ...]]:
    """The starts for which there was no room, each with the first job of its window."""
    window, rate = deque[_Start](), rule.rate or 0
    for start in starts:
        while window and start.moment - window[0].moment >= rule.per - EPSILON:
            window.popleft()
        # a cost above the rule counts as the whole rule
        used = sum(min(earlier.counted(start.called), rate) for earlier in window) + min(start.cost, rate)
        window.append(start)
        if used > rate:
            first = window[0]
            most = f"at most {rate} in {rule.per:g} s are allowed"
            yield f"{most}, found {used} within {start.moment - first.moment:g} s", first.id, start.id


def _too_fast(rule: Limit, starts: list[_Start]) -> Iterator[tuple[str, ...]]:
    """The jobs that started although even a bucket that was full at the beginning was empty."""
    speed, most = (rule.rate or 0) / rule.per, capacity(rule)
    tokens, before = float(most), starts[0].moment if starts else 0.0
    for start in starts:
        tokens, before = min(most, tokens + speed * (start.moment - before)) - min(start.cost, most), start.moment
        if tokens < -speed * TOLERANCE - EPSILON:
            yield f"{start.id} started {-tokens / speed:g} s before there was a token", start.id
        tokens += min(start.cost, most) - min(start.least, most)  # as if the run had given the rest back at once


def slots_left(it: Evidence) -> Iterator[Violation]:
    """At the end, only jobs that have not ended take slots or are blocked by limits."""
    busy = {name for row in it.rows.values() if row.state not in FINAL for name, _ in _named(it, row.job.id)}
    for use in it.limits:
        if (use.used or use.blocked) and use.key not in busy:
            text = f"{use.used} slots of {use.key} are in use and {use.blocked} jobs blocked, although all have ended"
            yield it.violation("left", text)


def keys(it: Evidence) -> Iterator[Violation]:
    """One job per key: the next one is created after the previous one has released its key."""
    if it.steps_of_clock:
        return
    by_key: dict[str, list[Record]] = {}
    for row in it.rows.values():
        if row.job.key is not None:
            by_key.setdefault(row.job.key, []).append(row)
    for key, rows in by_key.items():
        if any(row.reopenings for row in rows):
            continue  # a reopened job took its key again, for an unknown period
        # Of two rows of the same moment, the one that ended first was created first.
        rows.sort(key=lambda row: (row.created_at, inf if row.ended_at is None else row.ended_at, row.job.id))
        for one, other in pairwise(rows):
            waited = other.job.key_conflict == "replace" and _waited(one, other)
            if _released(one) > other.created_at and not waited:
                text = f"{one.job.id} and {other.job.id} held the key {key!r} at the same time"
                yield it.violation("key", text, one.job.id, other.job.id)


def _released(row: Record) -> float:
    """The earliest time at which a job may have released its key. If the job was claimed several times, its first start
    is not known."""
    ended = inf if row.ended_at is None else row.ended_at
    if row.job.key_until == "started" and row.started_at is not None:
        ended = min(ended, row.started_at) if row.version <= ONE_RUN else row.created_at
    return max(ended, row.created_at + (row.job.key_window or 0.0))


def keys_kept(it: Evidence) -> Iterator[Violation]:
    """No call gets a job that had released its key before the call."""
    ends = moments(it.entries, "settled")
    begun = {run.id: run.began for run in reversed(it.runs)}
    enqueued_at: dict[tuple[str, str], float] = {}
    for entry in it.entries:
        if entry.what == "asked":
            enqueued_at[entry.actor, entry.id] = entry.at
        row = it.rows.get(entry.name) if entry.what == "stored" and entry.name else None
        if row is None or row.job.key is None or row.job.key_window is not None or row.reopenings:
            continue
        freed = ends.get((entry.name, row.version - 1), inf)
        if row.job.key_until == "started":
            freed = min(freed, begun.get(entry.name, inf))
        if freed + TOLERANCE < enqueued_at.get((entry.actor, entry.id), 0.0) and not it.acts_on(entry.name):
            text = f"{entry.id} got {entry.name}, which had released the key {row.job.key!r} before"
            yield it.violation("key", text, entry.id, entry.name)


def _waited(one: Record, other: Record) -> bool:
    """Whether the job that took over the key did not begin before the previous one had ended."""
    if one.reason == SUPERSEDED or other.started_at is None or one.ended_at is None:
        return True
    return one.ended_at <= other.started_at


def upstreams(it: Evidence) -> Iterator[Violation]:
    """A job that waits for others begins only after as many of them have ended as it requires."""
    if it.steps_of_clock:
        return
    begun = {run.id for run in it.runs}
    for id, row in it.rows.items():
        if id not in begun or not row.job.after or row.started_at is None:
            continue
        if row.reopenings or row.job.wait_timeout is not None:
            continue
        ends = [up.ended_at for name in row.after if (up := it.rows.get(name)) is not None and not up.reopenings]
        needed = len(row.after) if row.job.required is None else row.job.required
        done = sum(end is not None and end <= row.started_at + EPSILON for end in ends)
        known = len(ends) == len(row.after)
        if known and done < needed and row.state is not State.CANCELLED:
            text = f"{id} began when {done} of the {needed} jobs it waits for had ended"
            yield it.violation("after", text, id, *row.after)


def failed_upstreams(it: Evidence) -> Iterator[Violation]:
    """A job that was cancelled because of a failed upstream still has one: a retry that reopens it reopens the job."""
    for id, row in it.rows.items():
        if row.state is not State.CANCELLED or row.reason != UPSTREAM or not row.after:
            continue
        ups = [it.rows.get(name) for name in row.after]
        if all(up is not None and up.state is State.SUCCEEDED for up in ups):
            text = f"{id} was cancelled because of a job that it waited for, and all of them have succeeded"
            yield it.violation("upstream", text, id, *row.after)
