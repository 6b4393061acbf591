"""Exports the rows of the schema job by job, imports them, and stores the mark of a move, which every verb obeys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict

from treadle.core.limit_model import LimitFacts
from treadle.storage.limit_facts import rows
from treadle.storage.postgres.metrics import all_metrics
from treadle.storage.postgres.metrics import words as metric_words
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.queries import limit_facts
from treadle.storage.postgres.rows import ENDED_ROW, NUMBER, escaped, from_json, job_words, record, text, unescaped
from treadle.storage.postgres.topics import Caller, noting
from treadle.storage.transfer import (
    Carried,
    Chunk,
    Edge,
    InTheWay,
    MoveState,
    Rate,
    decode_mark,
    encode_mark,
    overtaken,
    rates_of,
)

MARK: Final = "SELECT value FROM {schema}.meta WHERE name = 'move'"
SET_MARK: Final = noting("SELECT {schema}.set_mark(%s::float8, %s)", 1)
OLDEST_OPEN: Final = "SELECT {schema}.oldest_open()"
TAKE_IN: Final = "SELECT {schema}.import_rows(%s::json, %s::json, %s::json, %s::json, %s)"

# By id: this order does not change when jobs end. A job holds its key if `holder` names it and its own row still has
# the key; an ended job, only if its key window was open when it ended.
PAGE: Final = f"""
SELECT {ENDED_ROW},
    j.key IS NOT NULL AND (j.state < 3 OR coalesce(j.created_at + (j.words ->> 'window')::float8 > j.ended_at, false))
        AND EXISTS (SELECT FROM {{schema}}.holder h WHERE h.key = j.key AND h.id = j.id),
    (SELECT json_agg(json_build_array(e.up, e.version, e.open, e.soft) ORDER BY e.num)::text
        FROM {{schema}}.edge e WHERE e.down = j.id),
    (SELECT b.first FROM {{schema}}.behind b WHERE b.id = j.id)
FROM (
    (SELECT * FROM {{schema}}.job WHERE id > %s ORDER BY id LIMIT %s)
    UNION ALL (SELECT * FROM {{schema}}.ended WHERE id > %s ORDER BY id LIMIT %s)
) AS j ORDER BY j.id LIMIT %s
"""
STARTS: Final = "SELECT key, at, cost FROM {schema}.start ORDER BY key, at"
BUCKETS: Final = "SELECT key, tokens, at, coalesce(since, 0) FROM {schema}.gate WHERE tokens IS NOT NULL"


async def read_mark(run: Runner) -> MoveState | None:
    rows = await run.run(MARK, [])
    return decode_mark(unescaped(rows[0][0])) if rows else None


async def set_mark(run: Caller, mark: MoveState, now: float | None) -> None:
    _check(await run.call(SET_MARK, [now, _written(mark)]))


def _written(mark: MoveState) -> str:
    return escaped(encode_mark(mark).decode())


def _check(answer: Sequence[Sequence[Any]]) -> None:
    """The functions return NULL, or the stored mark if it refuses the new one, or the transaction that is in the
    way."""
    [[refusal]] = answer
    if refusal is not None and (waits := from_json(refusal)).keys() == {"waits"}:
        raise InTheWay(waits["waits"])
    if refusal is not None:
        raise overtaken(decode_mark(unescaped(refusal)), "this PostgreSQL schema")


# --- export


async def unload(run: Runner, cursor: str | None, limit: int) -> Chunk:
    past = escaped(cursor or "")
    page = await run.run(PAGE, [past, limit + 1, past, limit + 1, limit + 1])
    jobs = tuple(_carried(row) for row in page[:limit])
    more = jobs[-1].record.job.id if len(page) > limit else None
    if cursor is not None:
        return Chunk(jobs, cursor=more)
    rules = await limit_facts(run)
    return Chunk(jobs, tuple(rules[name] for name in sorted(rules)), await _rates(run), more, await all_metrics(run))


def _carried(row: Sequence[Any]) -> Carried:
    *columns, holds, edges, first = row
    waits = tuple(Edge(unescaped(up), *others) for up, *others in from_json(edges)) if edges is not None else ()
    return Carried(
        record=record(columns), holds_key=holds, edges=waits, behind=unescaped(first) if first is not None else None
    )


async def _rates(run: Runner) -> tuple[Rate, ...]:
    starts, buckets = await run.run(STARTS, []), await run.run(BUCKETS, [])
    return rates_of(
        ((unescaped(key), started_at, cost) for key, started_at, cost in starts),
        ((unescaped(key), *bucket) for key, *bucket in buckets),
    )


# --- import


async def load(run: Runner, chunk: Chunk, mark: MoveState) -> None:
    jobs = sorted((_job_columns(carried) for carried in chunk.jobs), key=lambda columns: str(columns["id"]))
    parts = [
        text(_facts(chunk.rules)),
        text(chunk.rates),
        text(metric_words(chunk.metrics)),
        text(jobs),
        _written(mark),
    ]
    _check(await run.run(TAKE_IN, parts, often=False))


def _facts(rules: Sequence[LimitFacts]) -> list[dict[str, Any]]:
    return [
        {**(asdict(rule) if rule is not None else {}), "name": name, "kind": kind, "until": until}
        for facts in rules
        for name, kind, rule, until in rows(facts)
    ]


# Columns that are fields of the record, or of its job.
_OF_RECORD: Final = (
    *("version", "function_done", "attempt", "lost", "reopenings", "pending", "failures_allowed", "queue_position"),
    *("return_position", "due_at", "deadline_at", "created_at", "started_at", "updated_at", "ended_at", "expires_at"),
    *("worker", "blocked_on", "reason", "note", "result", "value", "error"),
)
_OF_JOB: Final = ("id", "keep", "keep_failed", "lease", "queue", "task", "key", "lane", "root", "parent", "labels")


def _job_columns(carried: Carried) -> dict[str, Any]:
    """The columns of the job's row, and its rows in other tables."""
    row, fields = carried.record, job_words(carried.record.job)
    columns = {name: getattr(row, name) for name in _OF_RECORD} | {name: getattr(row.job, name) for name in _OF_JOB}
    columns |= {name: fields.get(name) for name in ("rank", "limits", "costs", "words", "spec")}
    if row.job.key_until == "started" and row.started_at is not None and not carried.holds_key:
        columns["key"] = None  # given up when it was claimed
    return columns | {
        "state": NUMBER[row.state],
        "checkpoints": bool(row.checkpoints),
        "after": row.after or None,
        "steps": row.checkpoints,
        "holds": carried.holds_key,
        "first": carried.behind,
        "edges": [(edge.up, edge.version, edge.open, edge.soft) for edge in carried.edges],
    }
