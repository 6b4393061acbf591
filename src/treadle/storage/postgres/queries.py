"""Queries: rows by id, counts, a glance, limits. They change nothing; pages.py has the pages.

Each reads both tables in one statement: a job that ends meanwhile moves from one table to the other, and must be seen
exactly once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import Presence, Record
from treadle.core.query_model import Count, Glance, QueueGlance, Stats
from treadle.storage import queries
from treadle.storage.admission import counted, rule_for
from treadle.storage.limit_facts import gathered
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.rows import STATES, heard, record, text

IDS: Final = "ARRAY(SELECT json_array_elements_text(%s::json))"
BY_IDS: Final = f"SELECT * FROM {{schema}}.rows_of({IDS})"

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
SELECT 'queue:' || queue, count(*) FILTER (WHERE NOT function_done), count(*)
FROM {schema}.job WHERE state = 2 GROUP BY queue
UNION ALL
SELECT 'queue:' || queue, 0, count(*) FROM {schema}.job WHERE started_at IS NOT NULL AND state < 2 GROUP BY queue
"""
ASIDE: Final = """
SELECT blocked_on, count(*) FROM {schema}.job WHERE blocked_on IS NOT NULL AND queue_position IS NULL
GROUP BY blocked_on
"""
GLANCE: Final = "SELECT {schema}.glance(%s::float8, %s::int)::text"
RATES: Final = "SELECT key, left_now, next_start FROM {schema}.rates(%s::float8)"

_presence = msgspec.json.Decoder(Presence).decode


# A row of FACTS, with numbers that JSON may write as integers.
Fact = tuple[str, str, int | None, int | None, float | None, str | None, int | None, str | None, float | None]


class _Glance(Struct, array_like=True):
    """The result of the function `glance`."""

    at: float
    queues: list[tuple[str, int, float]]
    kinds: list[tuple[str, str, int, bool]]
    workers: list[tuple[str, float]]
    facts: list[Fact]
    uses: list[tuple[str, int, int]]
    blocked: list[tuple[str, int]]
    rates: list[tuple[str, float, float | None]]


_glance = msgspec.json.Decoder(_Glance).decode


async def by_ids(run: Runner, ids: Sequence[str]) -> dict[str, Record]:
    names = text(list(dict.fromkeys(ids)))
    rows = map(record, await run.run(BY_IDS, [names]))
    return {row.job.id: row for row in rows}


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


async def glance(run: Runner, now: float | None, most: int) -> Glance:
    """One round trip, and a few ms with a million rows."""
    [(told,)] = await run.run(GLANCE, [now, most])
    found = _glance(told)
    queued: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, jobs, first in found.queues:
        queued[name] = {
            "queued": min(jobs, most),
            "queued_capped": jobs > most,
            "oldest": max(0.0, found.at - first),
        }
    for kind, name, jobs, _ in found.kinds:
        if jobs:
            queued[name][kind] = jobs
    names = sorted((heard(name), name) for name in queued)
    capped = {kind for kind, _, _, over in found.kinds if over}
    return Glance(
        at=found.at,
        queues=tuple(QueueGlance(name=name, **queued[stored]) for name, stored in names),
        workers=queries.workers([(_presence(presence), seen) for presence, seen in found.workers], found.at),
        limits=_uses(_facts(found.facts), found.uses, found.blocked, found.rates),
        capped=tuple(kind for kind in queries.KINDS if kind in capped),
    )


async def limits(run: Runner, now: float | None, use: bool = True) -> tuple[LimitUse, ...]:
    facts = await limit_facts(run)
    if not queries.acting_rules(facts) or not use:
        return queries.limit_uses(facts)
    return _uses(facts, await run.run(USES, []), await run.run(ASIDE, []), await run.run(RATES, [now]))


def _uses(
    facts: Mapping[str, LimitFacts],
    uses: Iterable[tuple[Any, ...]],
    blocked: Iterable[tuple[Any, ...]],
    rates: Iterable[tuple[Any, ...]],
) -> tuple[LimitUse, ...]:
    """The use of each rule, from rows (limit, slots of running jobs, slots held), (limit, blocked jobs) and (limit,
    starts that are left, the next start)."""
    rules = queries.acting_rules(facts)
    used: Counter[str] = Counter()
    for name, live, held in uses:
        key = heard(name)
        rule = rule_for(rules, key)
        used[key] += int(held if rule is not None and rule.hold == "ended" else live)
    counts = {heard(key): int(jobs) for key, jobs in blocked}
    left = {}
    for name, starts, opens in rates:
        rule = rule_for(rules, heard(name))
        if rule is not None:
            left[heard(name)] = counted(rule, starts), opens
    return queries.limit_uses(facts, used, counts, left)


async def limit_facts(run: Runner) -> dict[str, LimitFacts]:
    """The stored facts of each limit."""
    return _facts(await run.run(FACTS, []))


def _facts(found: Iterable[tuple[Any, ...]]) -> dict[str, LimitFacts]:
    return gathered(
        (heard(name), kind, Limit(heard(name), *rule) if rule[2] is not None else None, until)
        for name, kind, *rule, until in ((name, heard(kind), *others) for name, kind, *others in found)
    )
