"""The rules: set, replaced and removed, and what acts at once when they change.

Without it nothing could be limited or paused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from treadle.model import Limit
from treadle.storage.admit import rule_for
from treadle.storage.sqlite.desk import SQL as DESK
from treadle.storage.sqlite.desk import Desk
from treadle.storage.sqlite.rows import encode
from treadle.storage.sqlite.statements import load

SQL = load("limits")


def set_limits(desk: Desk, limits: Sequence[Limit]) -> Generator[Callable[[], Any] | None, Any, None]:
    desk.refuse()
    before = dict(desk.rules)
    for rule in limits:
        if rule.slots is None and rule.rate is None:
            desk.ex(SQL["remove"], (rule.name,))
        else:
            desk.ex(SQL["set"], (rule.name, encode(rule)))
    desk.rules_changed()
    for rule in limits:
        scope = _queue(rule.name)
        if scope is not None and rule.name in desk.rules and rule.name not in before:
            yield partial(desk.ex, SQL["count_queue"], (scope or None,))  # reads all rows: 0.1 s a million
            desk.ex(SQL["mark_queue"])
    for (key,) in desk.ex(SQL["slot_keys"]).fetchall():
        if rule_for(desk.rules, key) is None:
            desk.ex(SQL["drop_slots"], (key,))
    for (key,) in desk.ex(DESK["parked_keys"]).fetchall():
        desk.call_in_for(key)
        yield None
    desk.sync()
    desk.topics.add("queue:*")


def _queue(name: str) -> str | None:
    """Which queue a rule counts: "" for all of them, None if it is no queue's."""
    head, _, queue = name.partition(":")
    return queue if head == "queue" else None
