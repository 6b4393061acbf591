"""Deletes ended rows past their retention, with all that belongs to them, in steps."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from treadle.storage.admission import Usage, is_over, rule_for
from treadle.storage.sqlite.advance_due import advance_due
from treadle.storage.sqlite.rows import AFTER, CHECKPOINTS, DOWN, KEY, LABELS, decode, from_json, text
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("prune")
STEP = 128  # rows deleted between two turns of the loop: 2-3 ms
DAY = 86_400.0
FREE = 4_096  # free pages (16 MB) to keep for the next backlog
LIMITS = 1_000  # limits that one call checks
GIVE_BACK = 500  # pages that one call releases to the file system, at most

InThread = Callable[[], Any]


def prune(unit: UnitOfWork, limit: int, past: str) -> Generator[InThread | None, Any, tuple[int, str]]:
    """Delete ended rows, and check the limits whose keys follow `past`. Return how many rows were deleted, and the key
    after which the next call continues, or ''."""
    if unit.shut():
        return 0, past
    yield from advance_due(unit)
    went = yield from _prune_rows(unit, limit)
    unit.ex(SQL["drop_recent_claims"], (unit.now - DAY,))
    unit.ex(SQL["drop_workers"], (unit.now - 30 * DAY,))
    past = yield from _drop_limits(unit, past)
    unit.counts.drop_empty(unit.ex)
    return went, past


def _prune_rows(unit: UnitOfWork, limit: int) -> Generator[InThread | None, Any, int]:
    now = unit.now
    if unit.ex("SELECT 1 FROM job WHERE expires_at <= ? AND expires_at IS NOT NULL LIMIT 1", (now,)).fetchone() is None:
        return 0
    went, longer = 0, {0}
    while longer:
        rest = max(limit - went, 0)
        (row_text,) = yield partial(_old, unit, rest)
        rows: list[tuple[int, str, int]] = from_json(row_text)
        longer = _keep_longer(unit, rows)
        rows = [row for row in rows if row[0] not in longer]
        top = max((seq for seq, _, _ in rows), default=0)
        if rows and top == unit.ex("SELECT max(seq) FROM job").fetchone()[0]:
            unit.ex(SQL["keep_top"], (top,))  # else the next new row would get the number of a deleted one
        for start in range(0, len(rows), STEP):
            _delete(unit, rows[start : start + STEP])
            yield None
        went += len(rows)
    _shrink(unit)
    return went


def _old(unit: UnitOfWork, limit: int) -> Any:
    return unit.ex(SQL["old"], (unit.now, limit)).fetchone()


def _keep_longer(unit: UnitOfWork, rows: list[tuple[int, str, int]]) -> set[int]:
    """If a retry would need some of these rows again, keep them as long as the job that would wait for them. Return
    their numbers."""
    awaited = [seq for seq, _, flags in rows if flags & DOWN]
    if not awaited:
        return set()
    longer = unit.ex(SQL["keep_longer"], (text(awaited), unit.now)).fetchall()
    return {seq for (seq,) in longer}


def _drop_limits(unit: UnitOfWork, past: str) -> Generator[InThread | None, Any, str]:
    """Delete the rates of unused partitions (`user:<id>`): each leaves its starts or its bucket behind."""
    (rate_text,) = yield lambda: unit.ex(SQL["rates"], (past, LIMITS)).fetchone()
    rates: list[tuple[str, float | None, float | None, float | None]] = from_json(rate_text)
    unused = [
        key
        for key, last, tokens, moment in rates
        if is_over(
            rule_for(unit.rules, key),
            Usage(starts=[] if last is None else [(last, 1)], tokens=tokens, at=moment or 0.0),
            unit.now,
        )
    ]
    if unused:
        keys = text(unused)
        yield lambda: [unit.ex(SQL[name], (keys,)) for name in ("drop_starts", "drop_buckets")]
    return rates[-1][0] if len(rates) == LIMITS else ""


def _delete(unit: UnitOfWork, rows: list[tuple[int, str, int]]) -> None:
    seqs = text([seq for seq, _, _ in rows])
    labelled = [seq for seq, _, flags in rows if flags & LABELS]
    if labelled:
        bodies = unit.ex(SQL["labelled"], (text(labelled),)).fetchall()
        unit.many(SQL["drop_label"], [(label, seq) for seq, body in bodies for label in decode(body).labels])
    if any(flags & CHECKPOINTS for _, _, flags in rows):
        unit.ex(SQL["drop_checkpoints"], (seqs,))
    waited = [id for _, id, flags in rows if flags & AFTER]
    if waited:
        unit.ex(SQL["drop_edges"], (text(waited),))
    keyed = [id for _, id, flags in rows if flags & KEY]
    if keyed:
        unit.ex(SQL["drop_behind"], (text(keyed),))
    unit.counts.drop_ended(unit.ex, seqs)
    unit.ex(SQL["drop_body"], (seqs,))
    unit.ex(SQL["drop_job"], (seqs,))


def _shrink(unit: UnitOfWork) -> None:
    """Release some pages if many are free, so that one large backlog does not keep the disk space for ever."""
    free, pages = (unit.ex(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
    if free > FREE and free > pages // 2:
        unit.ex(f"PRAGMA incremental_vacuum({GIVE_BACK})").fetchall()
