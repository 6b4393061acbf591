"""Queries: rows by id, pages, counts. They change nothing.

Each reads both tables in one statement: a job that ends meanwhile moves from one table to the other, and must be seen
exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from treadle.core.model import FINAL, Count, Limit, LimitFacts, LimitUse, Page, Presence, Query, Record, State, Stats
from treadle.storage import queries
from treadle.storage.admission import counted, rule_for
from treadle.storage.limit_facts import gathered
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.rows import NUMBER, STATES, TOLD, TOLD_ENDED, heard, record, said, text

IDS: Final = "ARRAY(SELECT json_array_elements_text(%s::json))"
BY_IDS: Final = f"SELECT * FROM {{schema}}.rows_of({IDS})"

# How each order is split into pages: its columns, their direction, and the condition for rows behind a cursor.
ORDERS: Final = {
    "newest": (("created_at", "DESC"), ("id", "DESC")),
    "oldest": (("created_at", "ASC"), ("id", "ASC")),
    "ended": (("ended_at", "DESC"), ("id", "ASC")),
    "queue": (("queue", "ASC"), ("rank", "DESC"), ("queue_position", "ASC"), ("id", "ASC")),
}
BEHIND: Final = {
    "newest": "(j.created_at, j.id) < (%s::float8, %s)",
    "oldest": "(j.created_at, j.id) > (%s::float8, %s)",
    "ended": "j.ended_at <= %s::float8 AND (j.ended_at < %s::float8 OR j.id > %s)",
    "queue": "(j.queue, -j.rank, j.queue_position, j.id) > (%s, %s::int, %s::float8, %s)",
}

NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
COUNTS: Final = """
SELECT queue, task, state, count(*), count(queue_position),
       count(*) FILTER (WHERE blocked_on IS NOT NULL AND queue_position IS NULL), min(queue_position)
FROM {schema}.job GROUP BY queue, task, state
UNION ALL
SELECT queue, task, state, count(*), 0, 0, NULL FROM {schema}.ended GROUP BY queue, task, state
"""
WORKERS: Final = "SELECT presence, seen FROM {schema}.worker ORDER BY num"
FACTS: Final = "SELECT name, kind, slots, rate, per, how, burst, hold, until FROM {schema}.limit_fact"
# Slots in use by each limit, for hold="running" and for hold="ended". Slots of a queue's own limit have no rows: its
# jobs are counted.
USES: Final = """
SELECT key, coalesce(sum(cost) FILTER (WHERE live), 0), sum(cost) FROM {schema}.slot GROUP BY key
UNION ALL
SELECT 'queue:' || queue, count(*) FILTER (WHERE state = 2 AND NOT function_done), count(*)
FROM {schema}.job WHERE started_at IS NOT NULL GROUP BY queue
"""
ASIDE: Final = """
SELECT blocked_on, count(*) FROM {schema}.job WHERE blocked_on IS NOT NULL AND queue_position IS NULL
GROUP BY blocked_on
"""
RATES: Final = "SELECT key, left_now, next_start FROM {schema}.rates(%s::float8)"

_presence = msgspec.json.Decoder(Presence).decode


async def by_ids(run: Runner, ids: Sequence[str]) -> dict[str, Record]:
    names = text(list(dict.fromkeys(ids)))
    rows = map(record, await run.run(BY_IDS, [names]))
    return {row.job.id: row for row in rows}


# --- pages


class _Where:
    """Conditions and their values, in the order in which the statement uses them."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.values: list[Any] = []

    def add(self, condition: str, *values: Any) -> None:
        self.parts.append(condition)
        self.values += values

    def copy(self) -> _Where:
        other = _Where()
        other.parts, other.values = list(self.parts), list(self.values)
        return other

    def __str__(self) -> str:
        return " AND ".join(self.parts) or "true"


def _asked(query: Query) -> _Where:
    """The conditions of a query, for the rows of either table."""
    where = _Where()
    for column, value in (("task", query.task), ("queue", query.queue), ("parent", query.parent)):
        if value is not None:
            where.add(f"j.{column} = %s", said(value))
    if query.ids:
        where.add(f"j.id = ANY({IDS})", text(list(dict.fromkeys(query.ids))))
    if query.state:
        where.add(f"j.state IN ({', '.join(str(NUMBER[state]) for state in sorted(set(query.state)))})")
    if query.root is not None:
        where.add("(j.root = %s OR j.id = %s)", said(query.root), said(query.root))
    if query.label is not None:
        where.add("j.id IN (SELECT l.id FROM {schema}.label l WHERE l.label = %s)", said(query.label))
    if query.before is not None:
        where.add("j.created_at < %s::float8", query.before)
    if query.order == "queue" or query.ahead_of is not None:
        where.add("j.queue_position IS NOT NULL")
    if query.ahead_of is not None:
        where.add(
            "EXISTS (SELECT FROM {schema}.job o WHERE o.id = %s AND o.queue_position IS NOT NULL AND o.queue = j.queue"
            " AND (-j.rank, j.queue_position, j.id) < (-o.rank, o.queue_position, o.id))",
            said(query.ahead_of),
        )
    return where


def _tables(query: Query) -> list[tuple[str, str]]:
    """The tables that can contain matching rows, and how their columns are read."""
    states = set(query.state) or set(State)
    line = query.order == "queue" or query.ahead_of is not None
    tables = []
    if states - FINAL and query.order != "ended":
        tables.append(("job", TOLD))
    if states & FINAL and not line:
        tables.append(("ended", TOLD_ENDED))
    return tables


async def find(run: Runner, query: Query) -> Page:
    cursor = None if query.cursor is None else queries.read_cursor(query.cursor, query.order)
    limit, tables = max(query.limit, 0), _tables(query)
    if not tables:
        return Page(total=0 if query.count else None)
    where = _asked(query)
    behind = where.copy()
    if cursor is not None:
        behind.add(BEHIND[query.order], *_cut(query.order, cursor))
    columns = ORDERS[query.order]
    parts, values = [], []
    for table, told in tables:
        keys = ", ".join(f"j.{column} AS sort{n}" for n, (column, _) in enumerate(columns))
        order = ", ".join(f"j.{column} {way}" for column, way in columns)
        parts.append(f"(SELECT {told}, {keys} FROM {{schema}}.{table} j WHERE {behind} ORDER BY {order} LIMIT %s)")
        values += [*behind.values, limit + 1]
    order = ", ".join(f"sort{n} {way}" for n, (_, way) in enumerate(columns))
    statement = f"SELECT * FROM ({' UNION ALL '.join(parts)}) page ORDER BY {order} LIMIT %s"
    found = await run.run(statement, [*values, limit + 1], often=False)
    rows = [record(row[: -len(columns)]) for row in found[:limit]]
    total = await _total(run, where, tables) if query.count else None
    more = rows and len(found) > limit
    return Page(tuple(rows), queries.cursor_of(rows[-1], query.order) if more else None, total)


def _cut(order: str, cursor: tuple[Any, ...]) -> list[Any]:
    values = [said(part) if isinstance(part, str) else part for part in cursor]
    return [values[0], *values] if order == "ended" else values


async def _total(run: Runner, where: _Where, tables: list[tuple[str, str]]) -> int:
    parts = [f"(SELECT count(*) FROM {{schema}}.{table} j WHERE {where})" for table, _ in tables]
    [(total,)] = await run.run(f"SELECT {' + '.join(parts)}", where.values * len(tables), often=False)
    return int(total)


# --- statistics


async def stats(run: Runner, now: float | None) -> Stats:
    if now is None:
        [(now,)] = await run.run(NOW, [])
    assert now is not None
    counts = sorted((await run.run(COUNTS, [])), key=lambda row: (heard(row[0]), heard(row[1]), STATES[row[2]]))
    found = [(_presence(presence), seen) for presence, seen in await run.run(WORKERS, [])]
    return Stats(
        counts=tuple(_count(row, now) for row in counts),
        workers=queries.workers(found, now),
        limits=await limits(run, now),
    )


def _count(row: tuple[Any, ...], now: float) -> Count:
    queue, task, state, jobs, queued, blocked, first = row
    return Count(
        queue=heard(queue),
        task=heard(task),
        state=STATES[state],
        jobs=jobs,
        queued=queued,
        blocked=blocked,
        oldest=None if first is None else max(0.0, now - first),
    )


async def limits(run: Runner, now: float | None, use: bool = True) -> tuple[LimitUse, ...]:
    facts = await limit_facts(run)
    rules = queries.acting_rules(facts)
    if not rules or not use:
        return queries.limit_uses(facts)
    used: dict[str, int] = {}
    for name, live, begun in await run.run(USES, []):
        key = heard(name)
        rule = rule_for(rules, key)
        used[key] = int(begun if rule is not None and rule.hold == "ended" else live)
    blocked_on = {heard(key): int(jobs) for key, jobs in await run.run(ASIDE, [])}
    rates = {}
    for name, left, opens in await run.run(RATES, [now]):
        rule = rule_for(rules, heard(name))
        if rule is not None:
            rates[heard(name)] = counted(rule, left), opens
    return queries.limit_uses(facts, used, blocked_on, rates)


async def limit_facts(run: Runner) -> dict[str, LimitFacts]:
    """The stored facts of each limit."""
    found = await run.run(FACTS, [])
    return gathered(
        (heard(name), kind, Limit(heard(name), *rule) if rule[2] is not None else None, until)
        for name, kind, *rule, until in ((name, heard(kind), *others) for name, kind, *others in found)
    )
