"""Stores the rules of limits, and counts the slots of a queue that becomes limited."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

from treadle.core.limit_model import LimitChange, LimitFacts
from treadle.storage.admission import rule_for
from treadle.storage.bounds import bounds_of
from treadle.storage.limit_facts import acting, folded, gathered, named, rows
from treadle.storage.machine.limits import unblock_all
from treadle.storage.sqlite.rows import decode_rule, encode, text, to_json
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("limits")


def set_limits(unit: UnitOfWork, changes: Sequence[LimitChange]) -> Generator[Callable[[], Any] | None, Any, None]:
    unit.refuse()
    names = list(dict.fromkeys(map(named, changes)))
    fresh = folded(read(unit.ex(SQL["facts_of"], (text(names),))), changes)
    if not fresh:
        return
    before = dict(unit.rules)
    write(unit, fresh)
    unit.rules_changed()
    for facts in fresh:
        scope = _queue(facts.name)
        if scope is not None and facts.name in unit.rules and facts.name not in before:
            yield partial(unit.ex, SQL["count_queue"], (scope or None,))  # reads all rows: 0.1 s a million
            unit.ex(SQL["mark_queue"])
    for (key,) in unit.ex(SQL["slot_keys"]).fetchall():
        if rule_for(unit.rules, key) is None:
            unit.ex(SQL["drop_slots"], (key,))
    yield from unblock_all(unit)
    unit.sync()
    unit.topics.add("queue:*")


def _queue(name: str) -> str | None:
    """The queue that a rule limits: "" for all queues, None if the rule is not for queues."""
    head, _, queue = name.partition(":")
    return queue if head == "queue" else None


# --- the facts as rows


def read(stored: Iterable[Any]) -> dict[str, LimitFacts]:
    return gathered((name, kind, rule and decode_rule(rule), until) for name, kind, rule, until in stored)


def write(unit: UnitOfWork, facts: Iterable[LimitFacts]) -> None:
    """Replace the stored facts of these limits, and derive the acting rule of each from them."""
    of_queues = False
    for limit in facts:
        of_queues = of_queues or _queue(limit.name) is not None
        unit.ex(SQL["drop_facts"], (limit.name,))
        parts = [(name, kind, rule and encode(rule), until) for name, kind, rule, until in rows(limit)]
        unit.many(SQL["add_fact"], parts)
        rule = acting(limit)
        if rule is None:
            unit.ex(SQL["remove"], (limit.name,))
        else:
            unit.ex(SQL["set"], (limit.name, encode(rule)))
    if of_queues:
        unit.ex(SQL["drop_bounds"])
        bounds = bounds_of(read(unit.ex(SQL["queue_facts"])))
        if bounds:
            unit.ex(SQL["set_bounds"], (to_json(bounds).decode(),))
