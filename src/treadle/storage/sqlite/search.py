"""A query as statements. A search runs in a thread and returns row numbers in one row of JSON; the loop then reads the
rows of the page.

With `Query.scan` it looks at a bounded number of rows: those of a small set that has every match (the rows with a
label, the running jobs, ...) if there is one, otherwise the next rows in the page's order, by the index of that order.
Succeeded jobs have no index by their ending, which would cost each job 3 to 4 %: a page of them in this order is sorted
from all ended rows (0.2 s for a million), or with `scan` from the LAST ones that are kept longest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.query_model import Query
from treadle.storage import queries
from treadle.storage.sqlite.counts import kept_ended
from treadle.storage.sqlite.filters import (
    AFTER,
    ALL,
    KEYS,
    MEMBERS,
    ORDERS,
    Part,
    ahead,
    behind,
    by_ending,
    filters,
    last_ended,
    ordered,
    sets,
)
from treadle.storage.sqlite.rows import from_json
from treadle.storage.sqlite.statements import load

SQL: Final = load("queries")
SMALL: Final = 10_000  # rows of a set that a search without `scan` reads in whole
LAST: Final = 10_000  # ended rows that a bounded page sorts by their ending
SEQ: Final = Part("j.seq")


class Found(Struct, frozen=True):
    """The row numbers of a page, and the other fields of it."""

    seqs: Sequence[int] = ()
    cursor: str | None = None
    scanned_to: float | None = None
    total: int | None = None
    scanned: int | None = None


class Search:
    """One query. Raises BadOption for an invalid cursor."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._cursor = None if query.cursor is None else queries.read_cursor(query.cursor, query.order)
        self._filters = filters(query)
        self._ahead: tuple[Part, ...] = (ALL,)
        self._rows = ordered(query)
        self._is_small = False

    def run(self, db: sqlite3.Connection) -> Found:
        db.execute("BEGIN")  # all statements below see one state of the file
        try:
            return self._run(db, self._query)
        finally:
            db.execute("COMMIT")

    def _run(self, db: sqlite3.Connection, query: Query) -> Found:
        if query.ahead_of is not None:
            own = db.execute(SQL["queue_position"], (query.ahead_of,)).fetchone()
            if own is None:
                return Found(total=0 if query.count else None, scanned=None if query.scan is None else 0)
            self._ahead = ahead(*own)
        self._choose(db)
        total = self._total(db) if query.count else None
        if not query.limit:
            return Found(total=total, scanned=None if query.scan is None else 0)
        if query.scan is None:
            return self._page(db, query.limit, total)
        return self._scan(db, query.scan, total)

    # --- which rows

    def _choose(self, db: sqlite3.Connection) -> None:
        """If some set of at most `scan` rows contains every match, search only the first such set."""
        query = self._query
        if query.ahead_of is not None and query.order == "queue":
            return
        bound = query.scan or SMALL
        for rows in sets(query):
            some = f"SELECT count(*) FROM (SELECT 1 FROM job j WHERE {rows.sql} LIMIT ?)"
            if _one(db, some, (*rows.values, bound + 1)) <= bound:
                self._rows, self._is_small = rows & MEMBERS[query.order], True
                return
        is_sorted = query.order == "ended" and not by_ending(query)
        if is_sorted and query.scan is not None and kept_ended(db) > LAST:
            until = None if self._cursor is None else self._cursor[0]
            self._rows, self._is_small = last_ended(query, LAST, until) & MEMBERS["ended"], True

    def _pieces(self, cursor: bool = True) -> list[Part]:
        """The rows to look at, after the cursor, as conditions that an index answers, in the page's order."""
        order, key = self._query.order, self._cursor if cursor else None
        if order == "queue":
            after = (ALL,) if key is None else behind(*key)
            return [self._rows & one & other for one, other in product(self._ahead, after)]
        either = Part(
            f"({' OR '.join(f'({piece.sql})' for piece in self._ahead)})",
            tuple(value for piece in self._ahead for value in piece.values),
        )
        if key is None:
            return [self._rows & either]
        return [self._rows & either & Part(AFTER[order], (*(key[:1] if order == "ended" else ()), *key))]

    def _next(self, what: Part, limit: int, cursor: bool = True, only: Part = ALL) -> Part:
        """A statement that reads `what` of the next rows in the page's order. Its pieces follow each other."""
        order, pieces = ORDERS[self._query.order], list[Part]()
        for rows in self._pieces(cursor):
            sql = f"SELECT {what.sql} FROM job j WHERE {rows.sql} AND {only.sql} ORDER BY {order} LIMIT {limit}"
            pieces.append(Part(sql, what.values + rows.values + only.values))
        if len(pieces) == 1:
            return pieces[0]
        whole = " UNION ALL ".join(f"SELECT * FROM ({piece.sql})" for piece in pieces)
        return Part(f"SELECT * FROM ({whole}) LIMIT {limit}", tuple(it for piece in pieces for it in piece.values))

    # --- reading them

    def _total(self, db: sqlite3.Connection) -> int:
        if self._query.scan is not None:
            scanned = self._next(Part(f"({self._filters.sql}) AS fits", self._filters.values), self._query.scan, False)
            total: int = _one(db, f"SELECT count(*) FROM ({scanned.sql}) WHERE fits", scanned.values)
            return total
        pieces = [rows & self._filters for rows in self._pieces(cursor=False)]
        return sum(_one(db, f"SELECT count(*) FROM job j WHERE {piece.sql}", piece.values) for piece in pieces)

    def _page(self, db: sqlite3.Connection, limit: int, total: int | None) -> Found:
        seqs = _seqs(db, self._next(SEQ, limit + 1, only=self._filters))
        if len(seqs) <= limit:
            return Found(seqs, total=total)
        cursor, moment = self._end(db, seqs[limit - 1])
        return Found(seqs[:limit], cursor, moment, total)

    def _scan(self, db: sqlite3.Connection, scan: int, total: int | None) -> Found:
        if not self._is_small and self._query.order == "ended" and not by_ending(self._query):
            page = self._page(db, min(self._query.limit, scan), total)  # it reads every row, so it may filter them too
            return replace(page, scanned=len(page.seqs))
        fits = Part(f"j.seq, ({self._filters.sql}) AS fits", self._filters.values)
        seqs, scanned, last = (self._at_once if self._is_small else self._by_index)(db, fits, scan)
        cursor, moment = (None, None) if last is None else self._end(db, last)
        return Found(seqs, cursor, moment, total, scanned)

    def _at_once(self, db: sqlite3.Connection, fits: Part, scan: int) -> tuple[list[int], int, int | None]:
        """Return the matching rows, the number of rows read, and the last row read if more rows follow it. One
        statement reads them, because they must be sorted."""
        rows = self._next(fits, scan + 1)
        pairs = from_json(_one(db, f"SELECT json_group_array(json_array(seq, fits)) FROM ({rows.sql})", rows.values))
        places = [number for number, (_, fit) in enumerate(pairs[:scan], 1) if fit][: self._query.limit]
        scanned = places[-1] if len(places) == self._query.limit else min(len(pairs), scan)
        return (
            [pairs[place - 1][0] for place in places],
            scanned,
            pairs[scanned - 1][0] if scanned < len(pairs) else None,
        )

    def _by_index(self, db: sqlite3.Connection, fits: Part, scan: int) -> tuple[list[int], int, int | None]:
        """The same conditions as several reads, each of which can end early. Only the first reads more than the
        index."""
        rows = self._next(fits, scan)
        seqs = _seqs(db, Part(f"SELECT seq FROM ({rows.sql}) WHERE fits LIMIT {self._query.limit}", rows.values))
        full = len(seqs) == self._query.limit
        most = self._place(db, seqs[-1]) if full else scan
        some = " UNION ALL ".join(
            f"SELECT * FROM (SELECT 1 FROM job j WHERE {piece.sql} LIMIT {most + 1})" for piece in self._pieces()
        )
        values = tuple(value for piece in self._pieces() for value in piece.values)
        count: int = _one(db, f"SELECT count(*) FROM (SELECT 1 FROM ({some}) LIMIT {most + 1})", values)
        if count <= most:
            return seqs, count, None
        return seqs, most, seqs[-1] if full else self._row_at(db, scan)

    def _place(self, db: sqlite3.Connection, seq: int) -> int:
        """The place of this row among the next rows, counted from 1."""
        order = self._query.order
        if order == "queue":
            rows = self._next(SEQ, -1)
            numbered = f"SELECT seq, row_number() OVER () AS number FROM ({rows.sql})"
            place: int = _one(db, f"SELECT number FROM ({numbered}) WHERE seq = ? LIMIT 1", (*rows.values, seq))
            return place
        moment, id = db.execute(f"SELECT {KEYS[order]} FROM job j WHERE seq = ?", (seq,)).fetchone()
        same = "j.id >= ?" if order == "newest" else "j.id <= ?"
        return self._count(db, self._before(moment)) + self._count(db, self._at(moment) & Part(same, (id,)))

    def _row_at(self, db: sqlite3.Connection, place: int) -> int:
        """The row at this place. Rows of the same instant are sorted by id, and only they."""
        order = self._query.order
        if order == "queue":
            rows = self._next(SEQ, place)
            nth_seq: int = _one(db, f"SELECT seq FROM ({rows.sql}) LIMIT 1 OFFSET {place - 1}", rows.values)
            return nth_seq
        [rows] = self._pieces()
        moment, id = KEYS[order].split(", ")
        down = " DESC" if order in ("newest", "ended") else ""
        nth = f"SELECT {moment} FROM job j WHERE {rows.sql} ORDER BY {moment}{down} LIMIT 1 OFFSET {place - 1}"
        instant = _one(db, nth, rows.values)
        rows &= self._at(instant)
        rest = place - 1 - self._count(db, self._before(instant))
        ids = f"{id} DESC" if order == "newest" else id
        seq: int = _one(db, f"SELECT seq FROM job j WHERE {rows.sql} ORDER BY {ids} LIMIT 1 OFFSET {rest}", rows.values)
        return seq

    def _before(self, moment: float) -> Part:
        order = self._query.order
        column = KEYS[order].partition(",")[0]
        return Part(f"{column} {'>' if order in ('newest', 'ended') else '<'} ?", (moment,))

    def _at(self, moment: float) -> Part:
        return Part(f"{KEYS[self._query.order].partition(',')[0]} = ?", (moment,))

    def _count(self, db: sqlite3.Connection, only: Part) -> int:
        [rows] = self._pieces()
        rows &= only
        number: int = _one(db, f"SELECT count(*) FROM job j WHERE {rows.sql}", rows.values)
        return number

    def _end(self, db: sqlite3.Connection, seq: int) -> tuple[str, float | None]:
        """The cursor after a row, and its instant in the page's order."""
        order = self._query.order
        key = db.execute(f"SELECT {KEYS[order]} FROM job j WHERE seq = ?", (seq,)).fetchone()
        return queries.cursor_at(key, order), None if order == "queue" else key[0]


def _one(db: sqlite3.Connection, sql: str, values: Sequence[Any]) -> Any:
    return db.execute(sql, values).fetchone()[0]


def _seqs(db: sqlite3.Connection, rows: Part) -> list[int]:
    seq_text = db.execute(f"SELECT json_group_array(seq) FROM ({rows.sql})", rows.values).fetchone()[0]
    seqs: list[int] = from_json(seq_text)
    return seqs
