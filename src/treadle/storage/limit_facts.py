"""Applies changes to the facts of a limit, and derives the acting rule from them. Pure; for storages that run Python.

The facts are independent of each other, so a change never depends on what its caller has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from treadle.core.limit_model import Declare, Limit, LimitChange, LimitFacts, Pause, Resume, Why

WHYS: Final[tuple[Why, ...]] = ("paused", "held")


def named(change: LimitChange) -> str:
    """The name of the limit that a change applies to."""
    return change.rule.name if isinstance(change, Declare) else change.name


def changed(facts: LimitFacts, change: LimitChange) -> LimitFacts:
    match change:
        case Limit():
            return replace(facts, set=None, declared=None) if change.empty else replace(facts, set=change)
        case Declare(rule):
            return replace(facts, declared=rule)
        case Pause():
            others = [pause for pause in facts.pauses if pause.why != change.why]
            return replace(facts, pauses=tuple(sorted([*others, change], key=lambda pause: WHYS.index(pause.why))))
        case Resume():
            pauses = tuple(pause for pause in facts.pauses if pause.why != change.why or _outlasts(pause, change))
            if change.why == "paused":
                facts = replace(facts, set=_with_slots(facts.set), declared=_with_slots(facts.declared))
            return replace(facts, pauses=pauses)


def folded(stored: Mapping[str, LimitFacts], changes: Iterable[LimitChange]) -> list[LimitFacts]:
    """The facts that differ from the stored ones once these changes have been applied, in order."""
    facts: dict[str, LimitFacts] = {}
    for change in changes:
        name = named(change)
        facts[name] = changed(facts.get(name) or _stored(stored, name), change)
    return [limit for limit in facts.values() if limit != _stored(stored, limit.name)]


def _stored(stored: Mapping[str, LimitFacts], name: str) -> LimitFacts:
    return stored.get(name, LimitFacts(name=name))


def acting(facts: LimitFacts) -> Limit | None:
    """The rule that jobs obey. While paused it has 0 slots and keeps its rate, so earlier starts still count after the
    pause."""
    rule = facts.set or facts.declared
    if facts.pauses:
        return replace(rule, slots=0) if rule is not None else Limit(facts.name, slots=0)
    return rule


def is_empty(facts: LimitFacts) -> bool:
    return facts.set is None and facts.declared is None and not facts.pauses


def _outlasts(pause: Pause, resume: Resume) -> bool:
    return resume.until is not None and (pause.until is None or pause.until > resume.until)


def _with_slots(rule: Limit | None) -> Limit | None:
    """The rule without its 0 slots; a queue keeps the bound of such a rule."""
    if rule is None or rule.slots != 0:
        return rule
    if rule.max_waiting is None:
        return None
    return Limit(rule.name, max_waiting=rule.max_waiting, when_full=rule.when_full)


# --- facts as rows, one each

Fact = tuple[str, str, Limit | None, float | None]
"""The limit's name, the kind ("set", "declared" or the reason of a pause), its rule or until when it lasts."""


def rows(facts: LimitFacts) -> list[Fact]:
    rules: list[Fact] = [
        (facts.name, kind, rule, None)
        for kind, rule in (("set", facts.set), ("declared", facts.declared))
        if rule is not None
    ]
    return rules + [(facts.name, pause.why, None, pause.until) for pause in facts.pauses]


def gathered(stored: Iterable[Fact]) -> dict[str, LimitFacts]:
    """The facts of each limit, built from their rows in any order."""
    facts: dict[str, LimitFacts] = {}
    for name, kind, rule, until in stored:
        old = facts.get(name, LimitFacts(name=name))
        if rule is not None:
            rule = replace(rule, name=name)
        if kind == "set":
            facts[name] = replace(old, set=rule)
        elif kind == "declared":
            facts[name] = replace(old, declared=rule)
        else:
            why: Why = "held" if kind == "held" else "paused"
            facts[name] = changed(old, Pause(name, why, until))
    return facts
