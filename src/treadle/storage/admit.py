"""May a job start now? The arithmetic of limits, pure, shared by every storage that can run Python.

Without it each storage would have its own idea of a rolling window, and one of them would let a job too many through.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec import Struct, field

from treadle.model import Limit

Costs = tuple[tuple[str, int], ...]


class Usage(Struct):
    """What one limit key has used: slots taken now, and its starts (window) or tokens left at a moment (bucket)."""

    used: int = 0
    starts: list[tuple[float, int]] = field(default_factory=list)  # (moment, cost), oldest first
    tokens: float | None = None  # None: full
    at: float = 0.0


def rule_for(rules: Mapping[str, Limit], key: str) -> Limit | None:
    """The rule a key obeys: its own, else that of the name before the colon."""
    return rules.get(key) or rules.get(key.partition(":")[0])


def slots_fit(rule: Limit, usage: Usage, cost: int) -> bool:
    """A cost beyond the rule counts as all of it: such a job runs alone."""
    return rule.slots is None or (rule.slots > 0 and usage.used + min(cost, rule.slots) <= rule.slots)


def capacity(rule: Limit) -> int:
    """How many may start at once."""
    return (rule.burst or rule.rate or 0) if rule.how == "bucket" else rule.rate or 0


def level(rule: Limit, usage: Usage, now: float) -> float:
    """How much may start now by the rate: what is left of the window, or the tokens in the bucket."""
    if rule.how == "bucket":
        full = capacity(rule)
        if usage.tokens is None:
            return full
        return min(float(full), usage.tokens + max(0.0, now - usage.at) * (rule.rate or 0) / rule.per)
    # `at + per <= now`, and never `at <= now - per`: the same sum as in opens_at, or the last bit would differ.
    return (rule.rate or 0) - sum(cost for at, cost in usage.starts if at + rule.per > now)


def rate_fits(rule: Limit, usage: Usage, cost: int, now: float) -> bool:
    return rule.rate is None or lets_start(rule, level(rule, usage, now), cost)


def lets_start(rule: Limit, left: float, cost: int) -> bool:
    """Whether a rate of which so much is left lets `cost` through."""
    return bool(rule.rate) and left >= min(cost, capacity(rule)) - 1e-9


def opens_at(rule: Limit, usage: Usage, cost: int, now: float) -> float | None:
    """When the rate will let `cost` through; None if it does now, or never will by itself."""
    if not rule.rate or rate_fits(rule, usage, cost, now):
        return None
    wanted = min(cost, capacity(rule))
    if rule.how == "bucket":
        return now + (wanted - level(rule, usage, now)) * rule.per / rule.rate
    missing = wanted - level(rule, usage, now)
    for at, spent in usage.starts:
        if at + rule.per > now:
            missing -= spent
            if missing <= 0:
                return at + rule.per
    return None


def spend(rule: Limit, usage: Usage, cost: int, now: float) -> None:
    """Write a start down."""
    if rule.rate is not None:
        if rule.how == "bucket":
            usage.tokens, usage.at = level(rule, usage, now) - min(cost, capacity(rule)), now
        elif usage.starts and usage.starts[-1][0] == now:  # one entry a moment: a claim of 256 spends 256 times
            usage.starts[-1] = now, usage.starts[-1][1] + min(cost, rule.rate)
        else:
            usage.starts = [entry for entry in usage.starts if entry[0] + rule.per > now]
            usage.starts.append((now, min(cost, rule.rate)))


class Admission:
    """The limits at one moment. `blocked_by` asks, `admit` spends; what was spent on rates is in `spent`."""

    def __init__(self, rules: Mapping[str, Limit], usage: Callable[[str], Usage], now: float) -> None:
        self.rules, self.now = rules, now
        self._load = usage
        self.usage: dict[str, Usage] = {}
        self.spent: set[str] = set()
        self._left: dict[str, float] = {}  # of a rate, for it is a sum over all starts of the window

    def of(self, key: str) -> Usage:
        known = self.usage.get(key)
        if known is None:
            known = self.usage[key] = self._load(key)
        return known

    def open(self, key: str, cost: int, held: bool = False) -> bool:
        """Does this limit let `cost` through? `held`: the job has kept its slot from an earlier claim."""
        rule = rule_for(self.rules, key)
        if rule is None:
            return True
        usage = self.of(key)
        if not held and not slots_fit(rule, usage, cost):
            return False
        if rule.rate is None:
            return True
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = level(rule, usage, self.now)
        return lets_start(rule, left, cost)

    def blocked_by(self, costs: Costs, held: Container[str] = ()) -> str | None:
        """The first limit that is shut for a job, checked all before any is spent."""
        for key, cost in costs:
            if not self.open(key, cost, key in held):
                return key
        return None

    def admit(self, costs: Iterable[tuple[str, int]], held: Container[str] = ()) -> None:
        for key, cost in costs:
            usage = self.of(key)
            if key not in held:
                usage.used += cost
            rule = rule_for(self.rules, key)
            if rule is not None and rule.rate is not None:
                spend(rule, usage, cost, self.now)
                self.spent.add(key)
                if key in self._left:
                    self._left[key] -= min(cost, capacity(rule))

    def let_pass(self, costs: Iterable[tuple[str, int]], held: Container[str] = ()) -> None:
        """A job that ran asks nobody; of limits that keep slots until the ending it takes its own all the same."""
        for key, cost in costs:
            rule = rule_for(self.rules, key)
            if rule is not None and rule.hold == "ended" and key not in held:
                self.of(key).used += cost

    def back(self, key: str, returned: Sequence[tuple[int, bool]], aside: Iterable[tuple[int, bool]]) -> int:
        """How many of those aside may come back in line: as many as fit beside those that came back already.

        Each is (cost, whether it has kept its slot). Give those first that have: they need no slot, and the first
        for whom there is none bars those behind it (or a costly one would never come).
        """
        return max(0, self._fit(key, itertools.chain(returned, aside)) - len(returned))

    def _fit(self, key: str, asked: Iterable[tuple[int, bool]]) -> int:
        """How many of these, in order, would be let through now."""
        rule = rule_for(self.rules, key)
        if rule is None:
            return sum(1 for _ in asked)
        usage, left = self.of(key), level(rule, self.of(key), self.now) if rule.rate is not None else None
        used, fitting = usage.used, 0
        for cost, kept in asked:
            if rule.slots is not None and not kept:
                taken = min(cost, rule.slots)
                if rule.slots <= 0 or used + taken > rule.slots:
                    break
                used += taken
            if left is not None:
                taken = min(cost, capacity(rule))
                if left < taken - 1e-9 or not rule.rate:
                    break
                left -= taken
            fitting += 1
        return fitting
