"""Reads rows by id, pages and counts. It sees what is committed and changes nothing.

The search for a page runs in a thread and returns row numbers in one row of JSON. The loop then reads the few rows of
the page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.model import Count, Limit, LimitUse, Page, Presence, Query, Record
from treadle.storage import queries
from treadle.storage.admission import Usage, rate_use, rule_for
from treadle.storage.sqlite.limits import SQL as LIMITS
from treadle.storage.sqlite.limits import read
from treadle.storage.sqlite.rows import (
    CHECKPOINTS,
    NUMBER,
    STATES,
    decode_presence,
    from_json,
    record,
    text,
)
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import BY_IDS, BY_SEQS

SQL = load("queries")

ORDERS = {
    "newest": "j.created_at DESC, j.id DESC",
    "oldest": "j.created_at, j.id",
    "ended": "j.ended_at DESC, j.id",
    "queue": "j.queue, j.rank DESC, j.queue_position, j.id",
}
BEHIND = {
    "newest": "(j.created_at, j.id) < (?, ?)",
    "oldest": "(j.created_at, j.id) > (?, ?)",
    "ended": "j.ended_at <= ? AND NOT (j.ended_at = ? AND j.id <= ?)",
    "queue": "(j.queue, -j.rank, j.queue_position, j.id) > (?, ?, ?, ?)",
}


def by_ids(db: sqlite3.Connection, ids: Sequence[str]) -> list[Record | None]:
    known = {row.job.id: row for row in _records(db, BY_IDS.rows(db, (text(list(dict.fromkeys(ids))),)))}
    return [known.get(id) for id in ids]


def by_seqs(db: sqlite3.Connection, seqs: Sequence[int]) -> list[Record]:
    found = BY_SEQS.rows(db, (text(seqs),))
    order = {seq: number for number, seq in enumerate(seqs)}
    return _records(db, sorted(found, key=lambda each: order[each[0]]))


def _records(db: sqlite3.Connection, found: Sequence[Any]) -> list[Record]:
    remembering = [each[0] for each in found if each[1] & CHECKPOINTS]
    checkpoints: dict[int, tuple[tuple[str, str], ...]] = {}
    for seq, name, value in db.execute(SQL["checkpoints"], (text(remembering),)) if remembering else ():
        checkpoints[seq] = (*checkpoints.get(seq, ()), (name, value))
    return [record(each, checkpoints.get(each[0], ())) for each in found]


class Search:
    """A query as SQL: a page of row numbers, and the total if asked for."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.cursor = None if query.cursor is None else queries.read_cursor(query.cursor, query.order)
        self._where: list[str] = []
        self._values: list[Any] = []
        self._narrow()

    def _and(self, condition: str, *values: Any) -> None:
        self._where.append(condition)
        self._values += values

    def _narrow(self) -> None:
        query = self.query
        if query.state:
            self._and(f"j.state IN ({','.join('?' * len(query.state))})", *(NUMBER[state] for state in query.state))
            if all(NUMBER[state] > 3 for state in query.state):
                self._and("j.state > 3")  # so that SQLite can use the index of failed and cancelled jobs
        if query.task is not None and query.task.startswith("treadle."):
            self._and("j.task >= 'treadle.' AND j.task < 'treadle/'")  # the same for system tasks
        for value, condition in (
            (query.task, "j.task = ?"),
            (query.queue, "j.queue = ?"),
            (query.parent, "j.parent = ?"),
            (query.label, "j.seq IN (SELECT job FROM label WHERE label = ?)"),
            (query.before, "j.created_at < ?"),
        ):
            if value is not None:
                self._and(condition, value)
        if query.root is not None:
            self._and("(j.root = ? OR j.id = ?)", query.root, query.root)
        if query.ids:
            self._and("j.id IN (SELECT value FROM json_each(?))", text(query.ids))
        if query.order == "ended":
            self._and("j.ended_at IS NOT NULL")
        if query.order == "queue":
            self._and("j.queue_position IS NOT NULL")

    def run(self, db: sqlite3.Connection) -> tuple[list[int], int | None]:
        query = self.query
        db.execute("BEGIN")  # all statements below see one state of the file
        try:
            if query.ahead_of is not None:
                own = db.execute(SQL["spot"], (query.ahead_of,)).fetchone()
                if own is None:
                    return [], 0 if query.count else None
                self._and(
                    "j.queue_position IS NOT NULL AND j.queue = ? AND (-j.rank, j.queue_position, j.id) < (?, ?, ?)",
                    own[0],
                    -own[1],
                    *own[2:],
                )
            total: int | None = None
            if query.count:
                total = db.execute(f"SELECT count(*) FROM job j {self._clause()}", self._values).fetchone()[0]
            if self.cursor is not None:
                first = self.cursor[:1] if query.order == "ended" else ()
                self._and(BEHIND[query.order], *first, *self.cursor)
            order = ORDERS[query.order]
            said = db.execute(
                "SELECT json_group_array(seq) FROM "
                f"(SELECT j.seq FROM job j {self._clause()} ORDER BY {order} LIMIT ?)",
                (*self._values, max(query.limit, 0) + 1),
            ).fetchone()[0]
        finally:
            db.execute("COMMIT")
        return from_json(said), total

    def _clause(self) -> str:
        return f"WHERE {' AND '.join(self._where)}" if self._where else ""

    def page(self, rows: Sequence[Record], more: bool, total: int | None) -> Page:
        cursor = queries.cursor_of(rows[-1], self.query.order) if more and rows else None
        return Page(tuple(rows), cursor, total)


def counts(db: sqlite3.Connection) -> list[Any]:
    found: list[Any] = from_json(db.execute(SQL["counts"]).fetchone()[0])
    return found


def told(db: sqlite3.Connection, found: Sequence[Any], now: float) -> tuple[Count, ...]:
    """The counts, with the position of the first queued job read as a number: JSON would round it."""
    firsts = [each[6] for each in found if each[6] is not None]
    places = dict(db.execute(SQL["places"], (text(firsts),)).fetchall())
    made = []
    for queue, task, state, jobs, line, aside, first in found:
        position = places.get(first)
        made.append(
            Count(
                queue=queue,
                task=task,
                state=STATES[state],
                jobs=jobs,
                queued=line,
                blocked=aside,
                oldest=None if position is None else max(0.0, now - position),
            )
        )
    return tuple(sorted(made, key=lambda count: (count.queue, count.task, count.state)))


def workers(db: sqlite3.Connection, now: float) -> tuple[Presence, ...]:
    found = ((decode_presence(presence), seen) for presence, seen in db.execute(SQL["workers"]).fetchall())
    return queries.workers(found, now)


def limits(db: sqlite3.Connection) -> tuple[LimitUse, ...]:
    return queries.limit_uses(read(db.execute(LIMITS["all_facts"])))


def limits_in_use(db: sqlite3.Connection, now: float) -> tuple[LimitUse, ...]:
    """The limits and their use. Call this in the thread of searches."""
    facts = read(db.execute(LIMITS["all_facts"]))
    rules, used = queries.acting_rules(facts), dict[str, int]()
    if not rules:
        return ()
    for key, taken, live in from_json(db.execute(SQL["used"]).fetchone()[0]):
        rule = rule_for(rules, key)
        used[key] = taken if rule is not None and rule.hold == "ended" else live
    aside = dict(from_json(db.execute(SQL["aside"]).fetchone()[0]))
    return queries.limit_uses(facts, used, aside, _rates(db, rules, now))


def _rates(db: sqlite3.Connection, rules: Mapping[str, Limit], now: float) -> dict[str, queries.RateUse]:
    found = dict[str, queries.RateUse]()
    for key, tokens, at in db.execute(SQL["rated"]).fetchall():
        rule = rule_for(rules, key)
        if rule is not None and rule.rate is not None:
            starts = [] if rule.how == "bucket" else db.execute(SQL["window"], (key, rule.per, now)).fetchall()
            found[key] = rate_use(rule, Usage(starts=starts, tokens=tokens, at=at or 0.0), now)
    return found
