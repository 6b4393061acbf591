"""May a job start now? The arithmetic of limits, pure, shared by every storage that can run Python.

Without it each storage would have its own idea of a rolling window, and one of them would let a job too many through.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeGuard

from msgspec import Struct, field

from treadle.core.model import Hold, Limit, Record, State
from treadle.storage.row_rules import costs, within

GONE: Final = 30 * 86_400.0  # s after the last start, where no rule counts it

Costs = tuple[tuple[str, int], ...]


class Usage(Struct):
    """What one limit key has used: slots taken now, and its starts (window) or tokens left at a moment (bucket)."""

    used: int = 0
    starts: list[tuple[float, int]] = field(default_factory=list)  # (moment, cost), oldest first
    tokens: float | None = None  # None: full
    at: float = 0.0


class Asker(NamedTuple):
    """A job that asks for room in a limit: it stands aside, or came back in line and is not claimed yet."""

    turn: tuple[float, float, str]  # (-rank, place, id): who stands before whom
    cost: int
    kept: bool  # it has kept its slot since an earlier claim
    aside: bool

    @property
    def id(self) -> str:
        return self.turn[2]


def rule_for(rules: Mapping[str, Limit], key: str) -> Limit | None:
    """The rule a key obeys: its own, else that of the name before the colon."""
    return rules.get(key) or rules.get(key.partition(":")[0])


def slots_fit(rule: Limit, usage: Usage, cost: int) -> bool:
    """A cost beyond the rule counts as all of it: such a job runs alone."""
    return rule.slots is None or (rule.slots > 0 and usage.used + min(cost, rule.slots) <= rule.slots)


class Counting(Protocol):
    """Where a storage has its rules, and counts what they let in."""

    @property
    def rules(self) -> Mapping[str, Limit]: ...

    def kept(self, row: Record) -> list[str]: ...

    def used(self, key: str) -> Usage: ...


def may_go_on(row: Record | None, hold: Hold, counting: Counting) -> TypeGuard[Record]:
    """Whether a heartbeat prolongs the lease: no other claim came, and the limits of a job in line have room."""
    if (
        row is None
        or not within(hold.reach, row.job.queue)
        or row.version != hold.version
        or row.worker is None
        or row.state not in (State.RUNNING, State.READY)
    ):
        return False
    if row.state is State.READY and not row.ran:  # its lease ran out, and nobody has claimed it since
        kept = counting.kept(row)
        for key, cost in costs(row.job):
            rule = rule_for(counting.rules, key)
            if rule is not None and key not in kept and not slots_fit(rule, counting.used(key), cost):
                return False
    return True


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


def opens_behind(rule: Limit, usage: Usage, first: Asker, back: Iterable[Asker], now: float) -> float | None:
    """When the rate will let in the first blocked job of a queue, beside the jobs of this queue that are back in line
    before it and not claimed yet: a job that comes later must not take its start."""
    ahead = sum(min(each.cost, capacity(rule)) for each in back if each.turn < first.turn)
    return opens_at(rule, usage, ahead + first.cost, now)


def rate_use(rule: Limit, usage: Usage, now: float) -> tuple[int, float | None]:
    """How many starts a rate counts now, and when it lets the next one through; None if it does now."""
    if not rule.rate:
        return 0, None
    return counted(rule, level(rule, usage, now)), opens_at(rule, usage, 1, now)


def counted(rule: Limit, left: float) -> int:
    """The starts that a rate counts of which so much is left. A token that is refilled in part counts as used."""
    return max(0, math.ceil(capacity(rule) - left - 1e-9))


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


def take_back(usage: Usage, now: float) -> None:
    """Starts that a clock ahead of `now` wrote down count as now: none too many starts, and a rate opens again."""
    ahead = sum(cost for at, cost in usage.starts if at >= now)
    if ahead:
        usage.starts = [*(entry for entry in usage.starts if entry[0] < now), (now, ahead)]
    usage.at = min(usage.at, now)


def is_over(rule: Limit | None, usage: Usage, now: float) -> bool:
    """Whether a rate remembers nothing that still counts: its window is over, its bucket is full."""
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

    def back(self, key: str, keepers: Iterable[Asker], others: Iterable[Asker]) -> list[str]:
        """Which of those aside may come back in line. `keepers` have kept their slot, `others` need one, each in turn,
        with those among them that came back already: such a job takes its room from those behind it, and from no other.

        The first for whom no slot is free bars the others behind it, or a costly one would never come; the first that
        the rate does not let through bars all.
        """
        rule = rule_for(self.rules, key)
        if rule is None:
            return [each.id for each in heapq.merge(keepers, others) if each.aside]
        free = None if rule.slots is None else rule.slots - self.of(key).used
        left = level(rule, self.of(key), self.now) if rule.rate is not None else None
        barred, back = False, list[str]()

        def unbarred() -> Iterator[Asker]:
            for each in others:
                if barred:
                    return
                yield each

        for each in heapq.merge(keepers, unbarred()):
            slots = 0 if rule.slots is None or each.kept else min(each.cost, rule.slots)
            if free is not None and not each.kept and (not rule.slots or slots > free):
                barred = True
                continue
            if left is not None:
                if not lets_start(rule, left, each.cost):
                    break
                left -= min(each.cost, capacity(rule))
            if free is not None:
                free -= slots
            if each.aside:
                back.append(each.id)
        return back
