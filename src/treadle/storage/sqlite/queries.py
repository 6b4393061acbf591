"""Reads rows by id, statistics, workers and limits. It sees what is committed and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.limit_model import Limit, LimitUse
from treadle.core.model import Presence, Record
from treadle.core.query_model import Glance, Stats
from treadle.storage import queries
from treadle.storage.admission import Usage, rate_use, rule_for
from treadle.storage.count_groups import KeptCounts
from treadle.storage.sqlite import counts
from treadle.storage.sqlite.limits import SQL as LIMITS
from treadle.storage.sqlite.limits import read
from treadle.storage.sqlite.rows import CHECKPOINTS, checkpoints_of, decode_presence, from_json, record, text
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import BY_IDS, BY_SEQS

SQL = load("queries")


def by_ids(db: sqlite3.Connection, ids: Sequence[str]) -> list[Record | None]:
    known = {row.job.id: row for row in _records(db, BY_IDS.rows(db, (text(list(dict.fromkeys(ids))),)))}
    return [known.get(id) for id in ids]


def by_seqs(db: sqlite3.Connection, seqs: Sequence[int], whole: bool = True) -> list[Record]:
    rows = BY_SEQS.rows(db, (text(seqs),))
    order = {seq: number for number, seq in enumerate(seqs)}
    return _records(db, sorted(rows, key=lambda row: order[row[0]]), whole)


def _records(db: sqlite3.Connection, rows: Sequence[Any], whole: bool = True) -> list[Record]:
    known = checkpoints_of(db, [row[0] for row in rows if row[1] & CHECKPOINTS], whole)
    return [record(row, tuple(known.get(row[0], ()))) for row in rows]


def workers(db: sqlite3.Connection, now: float) -> tuple[Presence, ...]:
    presences = ((decode_presence(presence), seen) for presence, seen in db.execute(SQL["workers"]).fetchall())
    return queries.workers(presences, now)


def limits(db: sqlite3.Connection) -> tuple[LimitUse, ...]:
    return queries.limit_uses(read(db.execute(LIMITS["all_facts"])))


def limits_in_use(db: sqlite3.Connection, now: float, blocked: Mapping[str, int]) -> tuple[LimitUse, ...]:
    """The limits and their use. Call this in the thread of searches. `blocked`: the jobs that each limit blocks."""
    facts = read(db.execute(LIMITS["all_facts"]))
    rules, used = queries.acting_rules(facts), dict[str, int]()
    if not rules:
        return ()
    for key, taken, live in from_json(db.execute(SQL["used"]).fetchone()[0]):
        rule = rule_for(rules, key)
        used[key] = taken if rule is not None and rule.hold == "ended" else live
    return queries.limit_uses(facts, used, blocked, _rates(db, rules, now))


def _rates(db: sqlite3.Connection, rules: Mapping[str, Limit], now: float) -> dict[str, queries.RateUse]:
    uses, opens = dict[str, queries.RateUse](), dict(db.execute(SQL["openings"]).fetchall())
    for key, tokens, moment in db.execute(SQL["rated"]).fetchall():
        rule = rule_for(rules, key)
        if rule is not None and rule.rate is not None:
            starts = [] if rule.how == "bucket" else db.execute(SQL["window"], (key, rule.per, now)).fetchall()
            usage = Usage(starts=starts, tokens=tokens, at=moment or 0.0)
            uses[key] = *rate_use(rule, usage, now), opens.get(key)
    return uses


# --- statistics, which programs repeat every few seconds. Call these in the thread of searches


def stats(db: sqlite3.Connection, now: float) -> Stats:
    db.execute("BEGIN")  # all statements below see one state of the file
    try:
        kept = counts.kept(db, now)
        return Stats(counts=kept.counts(), workers=workers(db, now), limits=limits_in_use(db, now, kept.blocked()))
    finally:
        db.execute("COMMIT")


def glance(db: sqlite3.Connection, now: float, most: int) -> Glance:
    db.execute("BEGIN")
    try:
        kept, live = counts.kept(db, now), workers(db, now)
        used = limits_in_use(db, now, kept.blocked())
    finally:
        db.execute("COMMIT")
    queues, capped = kept.glance(most)
    return Glance(at=now, queues=queues, workers=live, limits=used, capped=capped)


def limits_now(db: sqlite3.Connection, now: float) -> tuple[LimitUse, ...]:
    """The limits and their use."""
    return limits_in_use(db, now, KeptCounts(counts.kept_rows(db), {}, now).blocked())
