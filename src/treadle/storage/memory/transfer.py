"""Exports all that is stored, row by row, and imports such rows."""

from __future__ import annotations

from collections import defaultdict

from treadle.storage.admission import Usage
from treadle.storage.machine.limits import unblock_all
from treadle.storage.machine.rows import finish
from treadle.storage.memory.tables import Edge, Tables
from treadle.storage.transfer import Carried, Chunk, Rate
from treadle.storage.transfer import Edge as Waits


def unload(tables: Tables, cursor: str | None, limit: int) -> Chunk:
    start = int(cursor or 0)
    rows = tables.whole(list(tables.jobs.values())[start : start + limit])
    edges: dict[str, list[Waits]] = defaultdict(list)
    wanted = {row.job.id for row in rows}
    for up, downs in tables.down.items():
        for down in downs.keys() & wanted:
            edge = downs[down]
            edges[down].append(Waits(up, edge.version, edge.open, edge.soft))
    jobs = tuple(
        Carried(
            record=row,
            holds_key=row.job.key is not None and tables.keys.get(row.job.key) == row.job.id,
            edges=tuple(edges[row.job.id]),
            behind=tables.former.get(row.job.id),
        )
        for row in rows
    )
    more = start + len(rows) < len(tables.jobs)
    if cursor is not None:
        return Chunk(jobs, cursor=str(start + len(rows)) if more else None)
    rates = tuple(
        Rate(key, tuple(usage.starts), usage.tokens, usage.at, usage.since)
        for key, usage in tables.rates.items()
        if usage.starts or usage.tokens is not None
    )
    return Chunk(jobs, tuple(tables.facts.values()), rates, str(len(rows)) if more else None)


def load(tables: Tables, chunk: Chunk) -> None:
    for facts in chunk.rules:
        tables.set_facts(facts)
    for rate in chunk.rates:
        usage = tables.rates.setdefault(rate.key, Usage())
        usage.starts, usage.tokens, usage.at, usage.since = list(rate.starts), rate.tokens, rate.at, rate.since
    for job in chunk.jobs:
        id, key = job.record.job.id, job.record.job.key
        if id in tables.jobs:
            continue
        tables.restore(job.record)
        if job.holds_key and key is not None:
            tables.keys[key] = id
        if job.behind is not None:
            tables.former[id] = job.behind
        for waits in job.edges:
            edge = tables.down[waits.up][id] = Edge(waits.version, waits.soft)
            edge.open = waits.open
    tables.topics.clear()


def open_again(tables: Tables) -> None:
    """Resume the queues: wake every worker, and queue blocked jobs for which there is room."""
    finish(unblock_all(tables))
    tables.topics.update(f"queue:{queue}" for queue, line in tables.line.items() if line)
