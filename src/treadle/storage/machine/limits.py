"""Queues blocked jobs again when a limit has room for them, and notes when a rate will.

The arithmetic of limits is in `storage/admission.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from msgspec.structs import replace

from treadle.core.limit_model import Limit
from treadle.core.model import Record
from treadle.storage.admission import Admission, Costs, keeps_slots, opens_behind, rule_for, settle_bucket
from treadle.storage.machine.rows import Rows, Steps
from treadle.storage.row_rules import costs, first_moment


def kept(rules: Mapping[str, Limit], row: Record) -> list[str]:
    """The limits whose slot a job holds since an earlier claim."""
    if row.started_at is None or row.state.final or not rules:
        return []
    return [key for key, _ in costs(row.job) if keeps_slots(rules, key)]


def settle_costs(rows: Rows, row: Record, spent: Costs) -> None:
    """Let rates count the real costs of the run that ends, in place of those that its claim reserved. The moment of the
    start identifies it: starts of one moment are recorded together, and what is replaced is a part of their sum."""
    if row.worker is None or row.started_at is None or row.function_done:
        return  # no run of its function ends
    reserved = dict(row.job.limits)
    for key, cost in dict(spent).items():
        if key not in reserved:
            continue
        rule = rule_for(rows.rules, key)
        if rule is None or rule.rate is None or rule.how == "window":
            rows.settle_start(key, row.started_at, reserved[key], cost)
        elif settle_bucket(rule, usage := rows.used(key), row.started_at, (reserved[key], cost), rows.now):
            rows.save_usage(key, usage)


def unblock_limits(rows: Rows, row: Record) -> None:
    """Queue blocked jobs again: a slot of this job may have become free, or it was queued again after a block and has
    now left the queue."""
    for key, _ in row.job.limits:
        unblock_limit(rows, key)


def unblock_limit(rows: Rows, key: str) -> bool:
    """Queue the blocked jobs again for which the limit has room. Return whether there was one. Jobs that were queued
    again before and precede them use room too."""
    queues = rows.blocked_queues(key)
    if not queues:
        rows.set_opening(key, None)
        return False
    gate, any_back = Admission(rows.rules, rows.used, rows.now), False
    for queue in queues:
        # Per queue: a job that is back in a paused or unserved queue keeps no other queue waiting.
        returned = rows.returned(key, queue)
        keepers = heapq.merge([asker for asker in returned if asker.kept], rows.blocked(key, queue, True))
        others = heapq.merge([asker for asker in returned if not asker.kept], rows.blocked(key, queue, False))
        for id in gate.back(key, keepers, others):
            row = rows.row(id)
            rows.put(replace(row, queue_position=row.return_position))
            any_back = True
    note_opening(rows, gate, key)
    return any_back


def unblock_all(rows: Rows) -> Steps[None]:
    """Queue all blocked jobs again for which there is room, because rules have changed or a move was aborted."""
    for key in rows.blocked_limits():
        unblock_limit(rows, key)
        yield


def note_opening(rows: Rows, gate: Admission, key: str) -> None:
    """Note when the rate will admit the first blocked job of some queue."""
    rule = rule_for(rows.rules, key)
    moments: list[float | None] = []
    for queue in rows.blocked_queues(key) if rule is not None and rule.rate is not None else ():
        returned = rows.returned(key, queue)
        firsts = (next(iter(rows.blocked(key, queue, first)), None) for first in (True, False))
        moments += [opens_behind(rule, gate.of(key), first, returned, gate.now) for first in firsts if rule and first]
    rows.set_opening(key, first_moment(*moments))
