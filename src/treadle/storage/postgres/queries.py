"""Queries: rows by id, statistics, limits. They change nothing; pages.py has the pages.

Each reads both tables in one statement: a job that ends meanwhile moves from one table to the other, and must be seen
exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from treadle.core.limit_model import Limit, LimitFacts, LimitUse, WhenFull
from treadle.core.model import Presence, Record
from treadle.core.query_model import CountDrift, Glance, Stats
from treadle.storage import queries
from treadle.storage.admission import counted as counted_starts
from treadle.storage.admission import rule_for
from treadle.storage.count_groups import KeptCounts, groups
from treadle.storage.limit_facts import gathered
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.rows import record, text, unescaped

IDS: Final = "ARRAY(SELECT json_array_elements_text(%s::json))"
BY_IDS: Final = f"SELECT * FROM {{schema}}.rows_of({IDS})"

FACTS: Final = (
    "SELECT name, kind, slots, rate, per, how, burst, hold, max_waiting, when_full, until FROM {schema}.limit_fact"
)
LOOK: Final = "SELECT {schema}.overview(%s::float8)::text"
RECOUNT: Final = "SELECT queue, task, kind, kept, counted FROM {schema}.recount(%s::boolean)"

_presence = msgspec.json.Decoder(Presence).decode


# A row of FACTS, with numbers that JSON may write as integers.
_Int = int | None
_Float = float | None
_Text = str | None
Fact = tuple[str, str, _Int, _Int, _Float, _Text, _Int, _Text, _Int, _Text, _Float]


class _Look(Struct, array_like=True):
    """The result of the function `look`."""

    moment: float
    counts: list[tuple[str, str, str, int]]
    heads: list[tuple[str, float]]
    workers: list[tuple[str, float]]
    facts: list[Fact]
    uses: list[tuple[str, int, int]]
    rates: list[tuple[str, float, float | None, float | None]]

    def kept(self) -> KeptCounts:
        rows = [(unescaped(queue), unescaped(task), unescaped(kind), jobs) for queue, task, kind, jobs in self.counts]
        return KeptCounts(rows, {unescaped(queue): position for queue, position in self.heads}, self.moment)

    def present(self) -> tuple[Presence, ...]:
        return queries.workers([(_presence(presence), seen) for presence, seen in self.workers], self.moment)

    def limits(self, kept: KeptCounts) -> tuple[LimitUse, ...]:
        return _uses(_facts(self.facts), self.uses, kept.blocked(), self.rates)


_look = msgspec.json.Decoder(_Look).decode


async def by_ids(run: Runner, ids: Sequence[str]) -> dict[str, Record]:
    names = text(list(dict.fromkeys(ids)))
    rows = map(record, await run.run(BY_IDS, [names]))
    return {row.job.id: row for row in rows}


# --- statistics


async def stats(run: Runner, now: float | None) -> Stats:
    """One round trip, and a few ms whatever the number of jobs."""
    view = await _looked(run, now)
    kept = view.kept()
    return Stats(counts=kept.counts(), workers=view.present(), limits=view.limits(kept))


async def glance(run: Runner, now: float | None, most: int) -> Glance:
    view = await _looked(run, now)
    kept = view.kept()
    queues, capped = kept.glance(most)
    return Glance(at=view.moment, queues=queues, workers=view.present(), limits=view.limits(kept), capped=capped)


async def _looked(run: Runner, now: float | None) -> _Look:
    [(overview,)] = await run.run(LOOK, [now])
    return _look(overview)


async def recount(run: Runner, repair: bool) -> tuple[CountDrift, ...]:
    kept, counted = dict[queries.Group, int](), dict[queries.Group, int]()
    for queue, task, kind, known, rows_counted in await run.run(RECOUNT, [repair]):
        [group] = groups([(unescaped(queue), unescaped(task), unescaped(kind), 0)])
        kept[group], counted[group] = int(known), int(rows_counted)
    return queries.drifts(kept, counted)


async def limits(run: Runner, now: float | None, use: bool = True) -> tuple[LimitUse, ...]:
    facts = await limit_facts(run)
    if not queries.acting_rules(facts) or not use:
        return queries.limit_uses(facts)
    view = await _looked(run, now)
    return view.limits(view.kept())


def _uses(
    facts: Mapping[str, LimitFacts],
    uses: Iterable[tuple[Any, ...]],
    blocked: Mapping[str, int],
    rates: Iterable[tuple[Any, ...]],
) -> tuple[LimitUse, ...]:
    """The use of each rule, from rows (limit, slots of running jobs, slots held), the blocked jobs by limit, and rows
    (limit, starts that are left, the next start)."""
    rules = queries.acting_rules(facts)
    used: Counter[str] = Counter()
    for name, live, held in uses:
        key = unescaped(name)
        rule = rule_for(rules, key)
        used[key] += int(held if rule is not None and rule.hold == "ended" else live)
    remaining = {}
    for name, starts, next_start, opens in rates:
        rule = rule_for(rules, unescaped(name))
        if rule is not None:
            remaining[unescaped(name)] = counted_starts(rule, starts), next_start, opens
    return queries.limit_uses(facts, used, blocked, remaining)


async def limit_facts(run: Runner) -> dict[str, LimitFacts]:
    """The stored facts of each limit."""
    return _facts(await run.run(FACTS, []))


def _facts(rows: Iterable[tuple[Any, ...]]) -> dict[str, LimitFacts]:
    return gathered(
        (unescaped(name), kind, _rule(unescaped(name), rule), until)
        for name, kind, *rule, until in ((name, unescaped(kind), *others) for name, kind, *others in rows)
    )


def _rule(name: str, columns: Sequence[Any]) -> Limit | None:
    """A rule from its columns; None for the row of a pause."""
    slots, rate, per, how, burst, hold, most, when_full = columns
    if per is None:
        return None
    return Limit(name, slots, rate, per, how, burst, hold, most, cast("WhenFull", unescaped(when_full)))
