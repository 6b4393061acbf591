"""Implements moves from and to a Redis server: reads all its data, loads such data, and keeps the mark of the move.

Every script that changes jobs obeys the mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from treadle.core.limit_model import LimitFacts
from treadle.core.query_model import MetricsRow
from treadle.storage.limit_facts import rows
from treadle.storage.redis import metrics
from treadle.storage.redis.counts import limit_facts
from treadle.storage.redis.reading import Reader
from treadle.storage.redis.rows import (
    decode_any,
    doubles,
    encode,
    in_doubles,
    is_plain,
    job_bytes,
    record,
    row_bytes,
    until_bytes,
)
from treadle.storage.row_rules import new_record
from treadle.storage.transfer import Carried, Chunk, Edge, MoveState, Rate, decode_mark, encode_mark, overtaken

AWAY: Final = b"\0"  # the first value in the answer of a script that a mark has stopped
MOST: Final = 500  # jobs in one script: some 10 ms of the server's time
MEASURED: Final = 100  # rows of metrics in one script: up to 1 MB each, mostly 1 KB
FAR: Final = 2e12  # seconds since 1970: no row of metrics begins or ends later


def mark_bytes(mark: MoveState) -> bytes:
    """The stored form of a mark: the first letter of its role, which most scripts read alone, then all of it."""
    return mark.role[:1].encode() + encode_mark(mark)


def mark_of(stored: bytes | None) -> MoveState | None:
    return None if not stored else decode_mark(stored[1:])


def check(answer: bytes) -> None:
    """Raise MoveFailed if a script returned the stored mark, because the new one may not replace it."""
    if answer:
        raise overtaken(decode_mark(answer[1:]), "this namespace of Redis")


def away(answer: Any) -> MoveState | None:
    """The mark, if it stopped the script."""
    if isinstance(answer, list) and answer and answer[0] == AWAY:
        return mark_of(answer[1])
    return None


async def unload(db: Reader, cursor: str | None, limit: int) -> Chunk:
    start, jobs = int(cursor or 0), list[Carried]()
    while len(jobs) < limit:
        size = min(MOST, limit - len(jobs))
        carried = _carried(await db.call("unload", start + len(jobs), size))
        jobs += carried
        if len(carried) < size:
            break
    more = str(start + len(jobs)) if len(jobs) == limit else None
    if cursor is not None:
        return Chunk(tuple(jobs), cursor=more)
    rules, measured = tuple((await limit_facts(db)).values()), await metrics.read(db, -FAR, FAR)
    return Chunk(tuple(jobs), rules, await _rates(db), more, tuple(measured))


def _carried(entries: Sequence[bytes]) -> list[Carried]:
    jobs = []
    for k in range(0, len(entries), 5):
        job, row, held, behind, packed = entries[k : k + 5]
        edges = decode_any(packed) if packed else ()
        jobs.append(
            Carried(
                record=record(job, row),
                holds_key=bool(held),
                behind=behind.decode() or None,
                edges=tuple(Edge(up, version, open, soft) for up, open, soft, version in edges),
            )
        )
    return jobs


def _facts(all_facts: Sequence[LimitFacts]) -> list[tuple[str, str, bytes]]:
    return [
        (kind, name, encode(rule) if rule is not None else until_bytes(until))
        for facts in all_facts
        for name, kind, rule, until in rows(facts)
    ]


async def _rates(db: Reader) -> tuple[Rate, ...]:
    spent = [field.decode() for field in await db.read("HKEYS", "spent")]
    buckets = await db.read("HGETALL", "bucket")
    rates = {}
    for k in range(0, len(buckets), 2):
        rates[buckets[k].decode()] = Rate(buckets[k].decode(), (), *doubles(buckets[k + 1]))
    for key in spent:
        entries = await db.read("ZRANGE", f"starts:{key}", 0, -1, "WITHSCORES")
        starts = tuple((float(entries[k + 1]), int(entries[k].partition(b":")[0])) for k in range(0, len(entries), 2))
        known = rates.get(key, Rate(key))
        rates[key] = Rate(key, starts, known.tokens, known.at, known.since)
    return tuple(rates.values())


async def load(db: Reader, chunk: Chunk, mark: MoveState) -> None:
    """Load a chunk in steps, each of which may be repeated. Only the last step sets the mark's new cursor and count."""
    before = mark_of(await db.read("GET", "move"))
    cursor, count = (before.cursor, before.jobs) if before is not None and before.role == "filling" else (None, 0)
    parts = _parts(chunk)
    for number, (measured, jobs) in enumerate(parts):
        step_mark = mark if number == len(parts) - 1 else replace(mark, cursor=cursor, jobs=count)
        facts, rates = (_facts(chunk.rules), list(map(_rate, chunk.rates))) if not number else ([], [])
        limits = len(facts), *chain(*facts), len(rates), *chain(*rates)
        entries = *metrics.stored_words(measured), *chain(*map(_job, jobs))
        check(await db.call("load", mark_bytes(step_mark), *limits, *entries))


def _parts(chunk: Chunk) -> list[tuple[Sequence[MetricsRow], Sequence[Carried]]]:
    """The parts that the steps load: rows of metrics, then jobs."""
    rows, jobs = chunk.metrics, chunk.jobs
    measured = [(rows[start : start + MEASURED], ()) for start in range(0, len(rows), MEASURED)]
    return [*measured, *(((), jobs[start : start + MOST]) for start in range(0, len(jobs), MOST))] or [((), ())]


def _rate(rate: Rate) -> tuple[str, bytes]:
    """The key of a rate; its starts, summed by moment, and its tokens."""
    sums = Counter[float]()
    for moment, cost in rate.starts:
        sums[moment] += cost
    return rate.key, encode((list(sums.items()), False if rate.tokens is None else rate.tokens, rate.at, rate.since))


def _job(carried: Carried) -> tuple[Any, ...]:
    row, plain = carried.record, is_plain(carried.record.job)
    body = job_bytes(row.job, plain) + in_doubles(row.created_at)
    edges = [(edge.up, edge.open, edge.soft, edge.version) for edge in carried.edges]
    ups = [edge.up for edge in carried.edges if not edge.soft and edge.up not in row.after]
    is_new = plain and row == new_record(row.job, row.created_at)  # queued, and unchanged since it was stored
    known = b"" if is_new else row_bytes(row, plain, ups)
    return row.job.id, body, known, "1" if carried.holds_key else "", carried.behind or "", encode(edges)
