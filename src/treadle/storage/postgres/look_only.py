"""Reads a schema that was opened only to be read, also one without the functions of this version of Treadle.

A check before a deployment runs the new version on the schema of the old one, whose functions have other names. Their
reads are then done by plain statements, whose cost has no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from treadle.core.errors import SchemaTooOld, StorageError
from treadle.core.query_model import Page, Query
from treadle.storage import queries as orders
from treadle.storage.admission import Usage, level, opens_at, rule_for
from treadle.storage.postgres import metrics, pages, queries
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Row, Value
from treadle.storage.postgres.migrate import newest, readable_state
from treadle.storage.postgres.pool import Pool, is_missing
from treadle.storage.postgres.rows import ENDED_ROW, OWN_STEPS, ROW, ROW_COLUMNS, STEPS, unescaped
from treadle.storage.postgres.topics import Caller
from treadle.storage.postgres.transfer import STARTS

# The columns of `details_of` in functions/row_details.sql, in its order.
_MORE: Final = (
    f"{ROW_COLUMNS}, json_build_array(j.after, j.pending, j.failures_allowed, j.function_done, j.deadline_at, "
    "j.blocked_on, j.reopenings, j.result, j.value, j.error, j.reason, j.note, j.ended_at, j.expires_at, "
    f"{STEPS})::text"
)
_BY_IDS: Final = (
    f"SELECT {_MORE} FROM {{schema}}.job j WHERE j.id = ANY ({queries.IDS}) "
    f"UNION ALL SELECT {_MORE} FROM {{schema}}.ended j WHERE j.id = ANY ({queries.IDS})"
)
_METRICS: Final = (
    "SELECT at, span, source, encode(data, 'hex') FROM {schema}.metrics "
    "WHERE at < %s::float8 AND at + span > %s::float8 ORDER BY at, span, source"
)
_GATES: Final = "SELECT key, tokens, at, opens FROM {schema}.gate WHERE spent > 0 OR tokens IS NOT NULL"
_COUNTS: Final = """
SELECT a.queue, a.task, a.kind, sum(a.jobs)::bigint FROM (
    SELECT queue, task, kind, jobs FROM {schema}.job_count
    UNION ALL
    SELECT g.queue, g.task, k.kind, k.jobs FROM {schema}.count_change g
    CROSS JOIN LATERAL (VALUES (g.was, -g.jobs), (g.became, g.jobs)) AS k (kind, jobs) WHERE k.kind IS NOT NULL
) AS a GROUP BY a.queue, a.task, a.kind HAVING sum(a.jobs) <> 0
"""
_KIND: Final = (
    "CASE j.state WHEN 2 THEN 'r' WHEN 3 THEN 'd' WHEN 1 THEN CASE WHEN j.queue_position IS NOT NULL THEN 'q' "
    "WHEN j.blocked_on IS NOT NULL THEN 'b' || j.blocked_on ELSE 's' END WHEN 0 THEN 'w' WHEN 4 THEN 'f' ELSE 'c' END"
)
_RECOUNT: Final = f"""
SELECT a.queue, a.task, a.kind, sum(a.kept)::bigint, sum(a.counted)::bigint FROM (
    SELECT k.queue, k.task, k.kind, k.jobs AS kept, 0 AS counted FROM ({_COUNTS}) AS k (queue, task, kind, jobs)
    UNION ALL SELECT j.queue, j.task, {_KIND}, 0, count(*) FROM {{schema}}.job j GROUP BY 1, 2, 3
    UNION ALL SELECT j.queue, j.task, {_KIND}, 0, count(*) FROM {{schema}}.ended j GROUP BY 1, 2, 3
) AS a GROUP BY a.queue, a.task, a.kind HAVING sum(a.kept) <> sum(a.counted)
"""
_HEADS: Final = "SELECT queue, min(queue_position) FROM {schema}.job WHERE queue_position IS NOT NULL GROUP BY queue"
_WORKERS: Final = "SELECT presence, seen FROM {schema}.worker ORDER BY num"
# Slots in use by each limit, for hold="running" and for hold="ended". Slots of a queue's own limit have no rows: its
# jobs are counted.
_USES: Final = """
SELECT key, coalesce(sum(cost) FILTER (WHERE live), 0), sum(cost) FROM {schema}.slot GROUP BY key
UNION ALL
SELECT 'queue:' || queue, count(*) FILTER (WHERE NOT function_done), count(*)
FROM {schema}.job WHERE state = 2 GROUP BY queue
UNION ALL
SELECT 'queue:' || queue, 0, count(*) FROM {schema}.job WHERE started_at IS NOT NULL AND state < 2 GROUP BY queue
"""
_NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"


class LookRunner(Caller):
    """Runs statements that only read. `has_functions`: the schema has the functions of this version."""

    def __init__(self, pool: Pool, address: Address, has_functions: bool) -> None:
        self._pool, self._address, self.has_functions = pool, address, has_functions

    async def call(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        return await self.run(text, values, often)

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        if not self.has_functions:
            if text == queries.LOOK:
                return await self._look(values[0])
            if text == queries.RECOUNT:
                text, values = _RECOUNT, []
            if text == queries.BY_IDS:
                text, values = _BY_IDS, [*values, *values]
            if text == metrics.READ:
                text, values = _METRICS, [values[1], values[0]]
            for steps in (STEPS, OWN_STEPS):
                more = _MORE.replace(STEPS, steps)
                text = text.replace(ROW.replace(STEPS, steps), more).replace(ENDED_ROW.replace(STEPS, steps), more)
        try:
            return await self._pool.run(text, values, often)
        except StorageError as error:
            if not is_missing(error.__cause__):
                raise
            lacks = "tables that it had when it was opened"
            raise SchemaTooOld(newest(), newest(), self._address.shown, lacks) from error

    async def find(self, query: Query) -> Page:
        """A page. Without the functions, a query that bounds the rows it looks at reads all that it needs."""
        if query.scan is None or self.has_functions:
            return await pages.find(self, query)
        page = await pages.find(self, replace(query, scan=None))
        last = page.records[-1] if page.cursor is not None else None
        moment = None if last is None else orders.moment_of(last, query.order)
        return Page(page.records, page.cursor, page.total, len(page.records), moment)

    async def _moment(self, now: Any) -> float:
        return float(now if now is not None else (await self.run(_NOW, []))[0][0])

    async def _rates(self, now: Any) -> list[Row]:
        """The rates of a look: limit, starts that are left, the next start, that of a blocked job."""
        moment = await self._moment(now)
        rules = orders.acting_rules(await queries.limit_facts(self))
        starts: dict[str, list[tuple[float, int]]] = {}
        for key, started_at, cost in await self.run(STARTS, []):
            starts.setdefault(key, []).append((started_at, cost))
        rows = []
        for key, tokens, started_at, opens in await self.run(_GATES, []):
            rule = rule_for(rules, unescaped(key))
            if rule is not None and rule.rate:
                usage = Usage(starts=starts.get(key, []), tokens=tokens, at=started_at or 0.0)
                rows.append((key, level(rule, usage, moment), opens_at(rule, usage, 1, moment), opens))
        return rows

    async def _look(self, now: Any) -> list[Row]:
        """The row of the function `look`."""
        moment = await self._moment(now)
        parts = [
            moment,
            await self.run(_COUNTS, []),
            await self.run(_HEADS, []),
            await self.run(_WORKERS, []),
            await self.run(queries.FACTS, []),
            await self.run(_USES, []),
            await self._rates(moment),
        ]
        return [(msgspec.json.encode(parts, enc_hook=float).decode(),)]


async def look_runner(pool: Pool, address: Address) -> LookRunner:
    """Raises NotADatabase, SchemaTooNew, SchemaTooOld, StorageUnavailable; StorageDenied without the rights to read."""
    number, functions = await readable_state(address)
    if number < newest():
        raise SchemaTooOld(number, newest(), address.shown)
    return LookRunner(pool, address, functions)
