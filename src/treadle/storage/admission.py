"""Decides whether a job may start now: the arithmetic of limits. Pure; used by every storage that decides in Python.

The SQL and Lua versions follow this module.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct, field

from treadle.core.limit_model import Limit

GONE: Final = 30 * 86_400.0  # seconds for which usage is kept after the last start if no rule counts it

R = TypeVar("R")  # a rule, or its use
Costs = tuple[tuple[str, int], ...]
Turn = tuple[float, float, str]  # (-rank, position, id): queue order


class Usage(Struct):
    """The usage of one limit key: slots in use, and its starts (window) or the tokens left at a moment (bucket)."""

    used: int = 0
    starts: list[tuple[float, int]] = field(default_factory=list)  # (moment, cost), oldest first
    tokens: float | None = None  # None: full
    at: float = 0.0
    since: float = 0.0  # the last start that found the bucket full; the bucket no longer counts earlier ones


class Asker(NamedTuple):
    """A job that needs room in a limit: it is blocked, or is queued again after blocking and not claimed yet."""

    turn: Turn
    cost: int
    kept: bool  # it has held a slot since an earlier claim
    aside: bool  # it is blocked

    @property
    def id(self) -> str:
        return self.turn[2]


def rule_for(rules: Mapping[str, R], key: str) -> R | None:
    """The rule of a key, or the use of that rule: the key's own, otherwise the one of the name before the colon."""
    return rules.get(key) or rules.get(key.partition(":")[0])


def keeps_slots(rules: Mapping[str, Limit], key: str) -> bool:
    """Whether jobs hold the slot of this limit until they have ended."""
    rule = rule_for(rules, key)
    return rule is not None and rule.hold == "ended"


def slots_fit(rule: Limit, usage: Usage, cost: int) -> bool:
    """Whether there are slots for `cost`. A cost above the number of slots counts as all slots: such a job runs
    alone."""
    return rule.slots is None or (rule.slots > 0 and usage.used + min(cost, rule.slots) <= rule.slots)


def capacity(rule: Limit) -> int:
    """The most that may start at once by the rate."""
    return (rule.burst or rule.rate or 0) if rule.how == "bucket" else rule.rate or 0


def level(rule: Limit, usage: Usage, now: float) -> float:
    """How much may start now by the rate: the rest of the window, or the tokens in the bucket."""
    if rule.how == "bucket":
        full = capacity(rule)
        if usage.tokens is None:
            return full
        return min(float(full), usage.tokens + max(0.0, now - usage.at) * (rule.rate or 0) / rule.per)
    # Compare `at + per` with `now`, as `opens_at` does: `now - per` can differ in the last bit.
    return (rule.rate or 0) - sum(cost for moment, cost in usage.starts if moment + rule.per > now)


def rate_fits(rule: Limit, usage: Usage, cost: int, now: float) -> bool:
    return rule.rate is None or lets_start(rule, level(rule, usage, now), cost)


def lets_start(rule: Limit, remaining: float, cost: int) -> bool:
    """Whether a rate with `remaining` left admits `cost`."""
    return bool(rule.rate) and remaining >= min(cost, capacity(rule)) - 1e-9


def opens_at(rule: Limit, usage: Usage, cost: int, now: float) -> float | None:
    """The moment at which the rate admits `cost`; None if it does so now, or never will by itself."""
    if not rule.rate or rate_fits(rule, usage, cost, now):
        return None
    wanted = min(cost, capacity(rule))
    if rule.how == "bucket":
        return now + (wanted - level(rule, usage, now)) * rule.per / rule.rate
    missing = wanted - level(rule, usage, now)
    for moment, spent in usage.starts:
        if moment + rule.per > now:
            missing -= spent
            if missing <= 0:
                return moment + rule.per
    return None


def opens_behind(rule: Limit, usage: Usage, first: Asker, back: Iterable[Asker], now: float) -> float | None:
    """The moment at which the rate admits `first`, the first blocked job of a queue. The jobs in `back` that precede it
    (of the same queue, queued again and not claimed yet) count as started: their starts are taken."""
    ahead = sum(min(asker.cost, capacity(rule)) for asker in back if asker.turn < first.turn)
    return opens_at(rule, usage, ahead + first.cost, now)


def rate_use(rule: Limit, usage: Usage, now: float) -> tuple[int, float | None]:
    """The number of starts that a rate counts now, and the moment at which it admits the next; None: now."""
    if not rule.rate:
        return 0, None
    return counted(rule, level(rule, usage, now)), opens_at(rule, usage, 1, now)


def counted(rule: Limit, remaining: float) -> int:
    """The number of starts that a rate counts if `remaining` remain. A partly refilled token counts as used."""
    return max(0, math.ceil(capacity(rule) - remaining - 1e-9))


def charge(rule: Limit, cost: int) -> int:
    """The part of the rate that a start of this cost takes: of a bucket no more than its burst. A window is used up in
    either case, so it records the whole cost, which the end of the run can replace exactly."""
    return min(cost, capacity(rule)) if rule.how == "bucket" else cost


def spend(rule: Limit, usage: Usage, cost: int, now: float) -> None:
    """Record a start in the usage."""
    if rule.rate is not None:
        if rule.how == "bucket":
            remaining = level(rule, usage, now)
            if remaining >= capacity(rule):
                usage.since = now
            usage.tokens, usage.at = remaining - charge(rule, cost), now
        elif usage.starts and usage.starts[-1][0] == now:  # one entry per moment: a claim may spend 256 times
            usage.starts[-1] = now, usage.starts[-1][1] + cost
        else:
            usage.starts = [entry for entry in usage.starts if entry[0] + rule.per > now]
            usage.starts.append((now, cost))


def settled_start(cost: int, reserved: int, spent: int) -> int:
    """The cost of all starts of a moment, `cost`, after one of them that had reserved so much has really spent this."""
    return max(0, cost - reserved) + spent


def settle_bucket(rule: Limit, usage: Usage, started_at: float, costs: tuple[int, int], now: float) -> bool:
    """Replace the cost that a start has taken of a bucket by the real one; `costs`: reserved and spent. Return False if
    the bucket does not count that start: it has been full since, or the rule is newer."""
    if usage.tokens is None or started_at < usage.since:
        return False
    reserved, spent = costs
    usage.tokens = min(float(capacity(rule)), level(rule, usage, now) + charge(rule, reserved) - spent)
    usage.at = max(usage.at, now)
    return True


def take_back(usage: Usage, now: float) -> None:
    """Set starts in the future, recorded by a clock ahead of `now`, to `now`: they still count, and expire in time."""
    ahead = sum(cost for moment, cost in usage.starts if moment >= now)
    if ahead:
        usage.starts = [*(entry for entry in usage.starts if entry[0] < now), (now, ahead)]
    usage.at, usage.since = min(usage.at, now), min(usage.since, now)


def is_over(rule: Limit | None, usage: Usage, now: float) -> bool:
    """Whether the recorded starts no longer count: the window has passed, or the bucket is full."""
    counted = rule if rule is not None and rule.rate is not None else None
    window = counted.per if counted is not None and counted.how == "window" else GONE
    if usage.starts and usage.starts[-1][0] + window > now:
        return False
    if usage.tokens is None:
        return True
    if counted is not None and counted.how == "bucket":
        return level(counted, usage, now) >= capacity(counted)
    return usage.at + GONE <= now


class Admission:
    """The limits at one moment. `blocked_by` checks a job, `admit` records its start; `spent` has the keys whose rates
    were used."""

    def __init__(self, rules: Mapping[str, Limit], usage: Callable[[str], Usage], now: float) -> None:
        self.rules, self.now = rules, now
        self._load = usage
        self.usage: dict[str, Usage] = {}
        self.spent: set[str] = set()
        self._levels: dict[str, float] = {}  # `level` of each key; cached because it sums all starts of the window

    def of(self, key: str) -> Usage:
        known = self.usage.get(key)
        if known is None:
            known = self.usage[key] = self._load(key)
        return known

    def open(self, key: str, cost: int, held: bool = False) -> bool:
        """Whether this limit admits `cost`. `held`: the job holds a slot from an earlier claim."""
        rule = rule_for(self.rules, key)
        if rule is None:
            return True
        usage = self.of(key)
        if not held and not slots_fit(rule, usage, cost):
            return False
        if rule.rate is None:
            return True
        remaining = self._levels.get(key)
        if remaining is None:
            remaining = self._levels[key] = level(rule, usage, self.now)
        return lets_start(rule, remaining, cost)

    def may_lack(self, key: str, cost: int) -> bool:
        """Whether this limit, which has just admitted `cost`, may have too little room for more than that."""
        rule = rule_for(self.rules, key)
        if rule is None:
            return False
        if rule.slots is not None and cost < rule.slots and self.of(key).used > 0:
            return True
        return rule.rate is not None and cost < capacity(rule) and self._levels[key] < capacity(rule)

    def blocked_by(self, costs: Costs, held: Container[str] = ()) -> str | None:
        """The first of its limits that does not admit the job; None if all do. Records nothing."""
        for key, cost in costs:
            if not self.open(key, cost, key in held):
                return key
        return None

    def admit(self, costs: Iterable[tuple[str, int]], held: Container[str] = ()) -> None:
        for key, cost in costs:
            rule = rule_for(self.rules, key)
            if rule is None:
                continue  # memory counts the begun jobs of a limit when asked, and 100,000 may sleep in the queue
            usage = self.of(key)
            if key not in held:
                usage.used += cost
            if rule.rate is not None:
                spend(rule, usage, cost, self.now)
                self.spent.add(key)
                if key in self._levels:
                    self._levels[key] -= charge(rule, cost)

    def let_pass(self, costs: Iterable[tuple[str, int]], held: Container[str] = ()) -> None:
        """Record a job whose function is done. No limit is checked; it takes a slot only where hold="ended"."""
        for key, cost in costs:
            rule = rule_for(self.rules, key)
            if rule is not None and rule.hold == "ended" and key not in held:
                self.of(key).used += cost

    def back(self, key: str, keepers: Iterable[Asker], others: Iterable[Asker]) -> list[str]:
        """The blocked jobs that may be queued again. `keepers` hold a slot, `others` need one. Both are in queue order
        and include the jobs that were queued again before: they keep room only from jobs behind them.

        The first job for which no slot is free holds back the `others` behind it, so that expensive jobs are not
        starved. The first job that the rate does not admit holds back all behind it.
        """
        rule = rule_for(self.rules, key)
        if rule is None:
            return [asker.id for asker in heapq.merge(keepers, others) if asker.aside]
        free = None if rule.slots is None else rule.slots - self.of(key).used
        remaining = level(rule, self.of(key), self.now) if rule.rate is not None else None
        barred, back = False, list[str]()

        def unbarred() -> Iterator[Asker]:
            for asker in others:
                if barred:
                    return
                yield asker

        for asker in heapq.merge(keepers, unbarred()):
            slots = 0 if rule.slots is None or asker.kept else min(asker.cost, rule.slots)
            if free is not None and not asker.kept and (not rule.slots or slots > free):
                barred = True
                continue
            if remaining is not None:
                if not lets_start(rule, remaining, asker.cost):
                    break
                remaining -= min(asker.cost, capacity(rule))
            if free is not None:
                free -= slots
            if asker.aside:
                back.append(asker.id)
        return back
