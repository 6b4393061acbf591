"""Exports all jobs in the file, one by one, and imports such jobs; reads and writes the mark of a move."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Generator, Sequence

from treadle.storage.count_groups import letter_of
from treadle.storage.machine.limits import unblock_all
from treadle.storage.sqlite import limits, metrics, queries
from treadle.storage.sqlite.inserts import SQL as ENQUEUE
from treadle.storage.sqlite.inserts import waited_for
from treadle.storage.sqlite.rows import AFTER, DOWN, encode, flags_of, inserted, text
from treadle.storage.sqlite.statements import load as statements
from treadle.storage.sqlite.unit_of_work import SQL as UNIT_SQL
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.storage.transfer import (
    SHUT,
    Carried,
    Chunk,
    Edge,
    MoveState,
    check_replaces,
    decode_mark,
    encode_mark,
    rates_of,
)

SQL = statements("transfer")
ADD = ENQUEUE["add_any"]
STEP = 128  # rows between two turns of the loop


# --- the mark


def read_mark(db: sqlite3.Connection) -> MoveState | None:
    row = db.execute(UNIT_SQL["mark"]).fetchone()
    return None if row is None else decode_mark(row[0])


def set_mark(unit: UnitOfWork, mark: MoveState) -> Generator[None, None, None]:
    _write_mark(unit, mark)
    if mark.role not in SHUT:
        yield from unblock_all(unit)
        unit.topics.add("queue:*")
    unit.sync()


def _write_mark(unit: UnitOfWork, mark: MoveState) -> None:
    row = unit.ex(UNIT_SQL["mark"]).fetchone()
    check_replaces(None if row is None else decode_mark(row[0]), mark, "this SQLite file")
    unit.ex(SQL["set_mark"], (encode_mark(mark).decode(),))


# --- export


def page(db: sqlite3.Connection, cursor: str | None, limit: int) -> list[int]:
    """The numbers of the next rows of an export."""
    return [seq for (seq,) in db.execute(SQL["page"], (int(cursor or 0), limit))]


def jobs(db: sqlite3.Connection, seqs: Sequence[int]) -> list[Carried]:
    rows = queries.by_seqs(db, seqs)
    ids = text([row.job.id for row in rows])
    keys = {id for (id,) in db.execute(SQL["keys"], (text(seqs),))}
    behind = dict(db.execute(SQL["behinds"], (ids,)).fetchall())
    edges: dict[str, list[Edge]] = defaultdict(list)
    for up, down, version, open, soft in db.execute(SQL["edges"], (ids,)):
        edges[down].append(Edge(up, version, bool(open), bool(soft)))
    return [
        Carried(record=row, holds_key=row.job.id in keys, edges=tuple(edges[row.job.id]), behind=behind.get(row.job.id))
        for row in rows
    ]


def first(db: sqlite3.Connection) -> Chunk:
    """The first part of an export: the rules, the state of the rates, and the rows of metrics."""
    rules = tuple(limits.read(db.execute(limits.SQL["all_facts"])).values())
    rates = rates_of(db.execute(SQL["all_starts"]), db.execute(SQL["all_buckets"]))
    return Chunk((), rules, rates, metrics=metrics.every_row(db))


# --- import


def load(unit: UnitOfWork, chunk: Chunk, mark: MoveState) -> Generator[None, None, None]:
    _write_mark(unit, mark)
    unit = unit.quiet()
    limits.write(unit, chunk.rules)
    for rate in chunk.rates:
        unit.many(UNIT_SQL["set_start"], [(rate.key, moment, cost) for moment, cost in rate.starts])
        if rate.tokens is not None:
            unit.ex(UNIT_SQL["set_bucket"], (rate.key, rate.tokens, rate.at, rate.since))
    metrics.add(unit, chunk.metrics)
    known = unit.stored([carried.record.job.id for carried in chunk.jobs])
    fresh = [carried for carried in chunk.jobs if carried.record.job.id not in known]
    top = unit.ex(ENQUEUE["top"]).fetchone()[0]
    for start in range(0, len(fresh), STEP):
        if start:
            yield
        top = _store(unit, fresh[start : start + STEP], top)


def _store(unit: UnitOfWork, fresh: Sequence[Carried], top: int) -> int:
    waited = waited_for(unit.ex, [carried.record.job for carried in fresh])
    for carried in fresh:
        row, job = carried.record, carried.record.job
        top += 1
        flags = flags_of(job) | (DOWN if job.id in waited else 0) | (AFTER if carried.edges else 0)
        unit.ex(ADD, inserted(row, top, flags, job.key if carried.holds_key else None))
        unit.ex(ENQUEUE["add_body"], (top, encode(job)))
        unit.counts.add(job.queue, job.task, letter_of(row), 1)
        if job.labels:
            unit.many(ENQUEUE["add_label"], [(label, top) for label in job.labels])
        unit.add(row, top, flags)
        if row.checkpoints:
            unit.remember(job.id, row.checkpoints)
        unit.put(row)
        if carried.behind is not None:
            unit.set_behind(job.id, carried.behind)
    unit.sync()
    edges = [
        (up.up, carried.record.job.id, up.version, up.open, up.soft, not up.soft and up.up in carried.record.after)
        for carried in fresh
        for up in carried.edges
    ]
    unit.many(SQL["add_edge"], edges)
    unit.ex(UNIT_SQL["mark_down"], (text(list({edge[0] for edge in edges})),))
    unit.forget_all()
    return top
