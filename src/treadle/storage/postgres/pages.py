"""Pages of rows, in an order, after a cursor; and the bounded pages of `Query.scan`.

A page reads both tables in one statement: a job that ends meanwhile moves from one table to the other, and must be seen
exactly once. Each part of an order (`_Part`) is served by an index, so a page reads no more rows than it looks at. Only
running jobs are read and sorted: there are as many as workers have slots.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from treadle.core import defaults
from treadle.core.model import FINAL, State
from treadle.core.query_model import Page, Query
from treadle.storage import queries
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.rows import ENDED_ROW, NUMBER, OWN_STEPS, ROW, STEPS, escaped, record, text
from treadle.storage.postgres.statements import renamed

IDS: Final = "ARRAY(SELECT json_array_elements_text(%s::json))"
NARROW: Final = 10_000  # rows that a label, parent or workflow may have for a bounded page to read and sort all of them

ORDERS: Final = {
    "newest": (("created_at", "DESC"), ("id", "DESC")),
    "oldest": (("created_at", "ASC"), ("id", "ASC")),
    "ended": (("ended_at", "DESC"), ("id", "ASC")),
    "queue": (("queue", "ASC"), ("rank", "DESC"), ("queue_position", "ASC"), ("id", "ASC")),
    "due": (("due_at", "ASC"), ("id", "ASC")),
    "started": (("started_at", "ASC"), ("id", "ASC")),
}
READY: Final = {
    "queued": "j.state = 1 AND j.queue_position IS NOT NULL",
    "scheduled": "j.state = 1 AND j.queue_position IS NULL AND j.blocked_on IS NULL",
    "blocked": "j.state = 1 AND j.queue_position IS NULL AND j.blocked_on IS NOT NULL",
}
AHEAD: Final = "(SELECT o.{column} FROM {{schema}}.job o WHERE o.id = %s AND o.queue_position IS NOT NULL)"
LABEL: Final = "j.id IN (SELECT l.id FROM {schema}.label l WHERE l.label = %s)"
LABEL_OF_ROW: Final = "(SELECT true FROM {schema}.label l WHERE l.label = %s AND l.id = j.id)"

SCAN_PAGE: Final = "SELECT * FROM {schema}.scan_page(%s, %s::text[])"
SCAN_COUNT: Final = "SELECT {schema}.scan_count(%s, %s::text[])"


class _Where:
    """Conditions and their values, in the order in which the statement uses them."""

    def __init__(self, *parts: str) -> None:
        self.parts = list(parts)
        self.values: list[Any] = []

    def add(self, condition: str, *values: Any) -> _Where:
        self.parts.append(condition)
        self.values += values
        return self  # so that calls can be chained

    def and_(self, other: _Where) -> _Where:
        both = _Where(*self.parts, *other.parts)
        both.values = [*self.values, *other.values]
        return both

    def __str__(self) -> str:
        return " AND ".join(self.parts) or "true"


class _Part(NamedTuple):
    """Rows of one table that one index returns in the order of the page. `sorted`: they are few, and are read whole."""

    table: str
    where: _Where
    sorted: bool = False

    @property
    def columns(self) -> str:
        return ROW if self.table == "job" else ENDED_ROW


async def find(run: Runner, query: Query) -> Page:
    cursor = None if query.cursor is None else queries.read_cursor(query.cursor, query.order)
    if query.scan is not None:
        return await _scan(run, query, query.scan, cursor)
    limit, where = max(query.limit, 0), _filter(query)
    parts = [part._replace(where=part.where.and_(where)) for part in _in_order(query)]
    if not parts:
        return Page(total=0 if query.count else None)
    selected, values = [], []
    order = ", ".join(f"j.{column} {way}" for column, way in ORDERS[query.order])
    for part in _behind(parts, query.order, cursor):
        selected.append(
            f"(SELECT {part.columns}, {_keys(query.order)} FROM {{schema}}.{part.table} j WHERE {part.where}"
            f" ORDER BY {order} LIMIT %s)"
        )
        values += [*part.where.values, limit + 1]
    statement = f"SELECT * FROM ({' UNION ALL '.join(selected)}) page ORDER BY {_sorts(query.order)} LIMIT %s"
    fetched = await run.run(_listed(statement, query), [*values, limit + 1], often=False)
    rows = [record(row[: -len(ORDERS[query.order])]) for row in fetched[:limit]]
    total = await _total(run, parts) if query.count else None
    more = rows and len(fetched) > limit
    return Page(tuple(rows), queries.cursor_of(rows[-1], query.order) if more else None, total)


def _listed(statement: str, query: Query) -> str:
    """The statement, which reads as many checkpoints as the query asks for."""
    return statement if query.whole else statement.replace(STEPS, OWN_STEPS)


async def _total(run: Runner, parts: Sequence[_Part]) -> int:
    counts = [f"(SELECT count(*) FROM {{schema}}.{part.table} j WHERE {part.where})" for part in parts]
    values = [value for part in parts for value in part.where.values]
    [(total,)] = await run.run(f"SELECT {' + '.join(counts)}", values, often=False)
    return int(total)


# --- the parts of an order


def _in_order(query: Query) -> list[_Part]:
    """The rows that may match, as an index of each part returns them."""
    states = set(query.state) or set(State)
    unfinished, ended = states - FINAL, states & FINAL
    if query.ready is not None:
        unfinished, ended = unfinished & {State.READY}, set()
    if query.order == "queue":
        return _queued(query) if State.READY in unfinished else []
    if query.order == "due":
        return _due(query, unfinished)
    if query.order == "started":
        return [_running()] if State.RUNNING in unfinished else []
    parts = []
    if unfinished and query.order != "ended":
        if unfinished != {State.RUNNING}:
            parts.append(_Part("job", _Where("j.state <> 2")))
        if State.RUNNING in unfinished:
            parts.append(_running())
    if ended and query.ahead_of is None:
        if query.order == "ended" and State.SUCCEEDED not in ended:
            parts += [_Part("ended", _Where(f"j.state = {NUMBER[state]}", "j.state > 3")) for state in sorted(ended)]
        else:
            parts.append(_Part("ended", _Where()))
    return parts


def _running() -> _Part:
    return _Part("job", _Where("j.state = 2"), sorted=True)


def _queued(query: Query) -> list[_Part]:
    """A whole queue, or its part ahead of a job: all of higher ranks, and the earlier ones of the same rank."""
    where = _Where("j.queue_position IS NOT NULL")
    if query.queue is not None:
        where.add("j.queue = %s", escaped(query.queue))
    if query.ahead_of is None:
        return [_Part("job", where)]
    own = escaped(query.ahead_of)
    queue, rank, position = (AHEAD.format(column=column) for column in ("queue", "rank", "queue_position"))
    where.add(f"j.queue = {queue}", own)
    higher = _Where().add(f"j.rank > {rank}", own)
    same = _Where().add(f"j.rank = {rank} AND (j.queue_position, j.id) < ({position}, %s)", own, own, own)
    return [_Part("job", where.and_(higher)), _Part("job", where.and_(same))]


def _due(query: Query, unfinished: set[State]) -> list[_Part]:
    due = "j.due_at IS NOT NULL"
    if query.ready == "scheduled":
        return [_Part("job", _Where(READY["scheduled"], due))] if unfinished else []
    parts = []
    if unfinished - {State.RUNNING}:
        parts.append(_Part("job", _Where(due, "j.state <> 2")))
    if State.RUNNING in unfinished:
        parts.append(_Part("job", _Where(due, "j.state = 2"), sorted=True))
    return parts


def _behind(parts: list[_Part], order: str, cursor: tuple[Any, ...] | None) -> list[_Part]:
    """Limits the parts to the rows after a cursor. A queue after a position has three parts, because no index compares
    all four columns in these directions at once."""
    if cursor is None:
        return parts
    cut: list[Any] = [escaped(part) if isinstance(part, str) else part for part in cursor]
    if order == "queue":
        queue, rank, position, id = cut
        cuts = [  # in order
            _Where().add(
                "j.queue = %s AND j.rank = %s::bigint AND (j.queue_position, j.id) > (%s::float8, %s)",
                *(queue, -rank, position, id),
            ),
            _Where().add("j.queue = %s AND j.rank < %s::bigint", queue, -rank),
            _Where().add("j.queue > %s", queue),
        ]
    elif order == "ended":
        cuts = [_Where().add("j.ended_at <= %s::float8 AND (j.ended_at < %s::float8 OR j.id > %s)", cut[0], *cut)]
    else:
        column, sign = ORDERS[order][0][0], "<" if order == "newest" else ">"
        cuts = [_Where().add(f"(j.{column}, j.id) {sign} (%s::float8, %s)", *cut)]
    return [part._replace(where=part.where.and_(cut)) for part in parts for cut in cuts]


def _keys(order: str) -> str:
    return ", ".join(f"j.{column} AS sort{n}" for n, (column, _) in enumerate(ORDERS[order]))


def _sorts(order: str) -> str:
    return ", ".join(f"sort{n} {way}" for n, (_, way) in enumerate(ORDERS[order]))


# --- filters


def _filter(query: Query, label: str = LABEL) -> _Where:
    """The conditions of a query, for the rows of either table."""
    where = _Where()
    for column, value in (("task", query.task), ("queue", query.queue), ("parent", query.parent)):
        if value is not None:
            where.add(f"j.{column} = %s", escaped(value))
    where.parts += _of_system(query)
    if query.ids:
        where.add(f"j.id = ANY({IDS})", text(list(dict.fromkeys(query.ids))))
    queued = query.order == "queue"  # `_queued` finds ready jobs only; a second condition misleads the planner
    if query.state and not queued:
        where.add(f"j.state IN ({', '.join(str(NUMBER[state]) for state in sorted(set(query.state)))})")
    if query.root is not None:
        where.add("(j.root = %s OR j.id = %s)", escaped(query.root), escaped(query.root))
    if query.label is not None:
        where.add(label, escaped(query.label))
    if query.ready is not None and not (queued and query.ready == "queued"):
        where.add(READY[query.ready])
    if query.ahead_of is not None and not queued:
        where.add(
            "j.queue_position IS NOT NULL AND EXISTS (SELECT FROM {schema}.job o WHERE o.id = %s"
            " AND o.queue_position IS NOT NULL AND o.queue = j.queue"
            " AND (-j.rank, j.queue_position, j.id) < (-o.rank, o.queue_position, o.id))",
            escaped(query.ahead_of),
        )
    return where.and_(_created(query))


def _created(query: Query) -> _Where:
    where = _Where()
    if query.before is not None:
        where.add("j.created_at < %s::float8", query.before)
    if query.since is not None:
        where.add("j.created_at >= %s::float8", query.since)
    return where


def _of_system(query: Query) -> list[str]:
    """The conditions of the indexes of system rows, as their definitions spell them."""
    conditions = [f"j.queue = '{defaults.SYSTEM_QUEUE}'"] if query.queue == defaults.SYSTEM_QUEUE else []
    if query.task is not None and query.task.startswith("treadle."):
        conditions.append("j.task >= 'treadle.' AND j.task < 'treadle/'")
    return conditions


# --- bounded pages


async def _scan(run: Runner, query: Query, scan: int, cursor: tuple[Any, ...] | None) -> Page:
    parts = await _narrowed(run, query, scan)
    total = await _fitting(run, query, parts, scan) if query.count else None
    if not parts or query.limit <= 0:
        return Page(total=total, scanned=0)
    stream, values = _stream(_behind(parts, query.order, cursor), query, scan + 1)
    order = _merged(query.order)
    # The last row that it returns is the last one that it looked at, whether it fits or not.
    statement = f"""
SELECT page.n, page.behind, page.fits, t.* FROM (
    SELECT w.place, w.spot, w.n, w.behind, w.fits FROM (
        SELECT s.*, row_number() OVER seen AS n, lead(true) OVER seen IS NOT NULL AS behind FROM ({stream}) s
        WINDOW seen AS ({order})
    ) w WHERE w.n <= {scan} AND (w.fits OR w.n = {scan} OR NOT w.behind) {order} LIMIT {query.limit}
) page CROSS JOIN LATERAL (
    SELECT {ROW} FROM {{schema}}.job j WHERE page.place = 'job' AND j.ctid = page.spot
    UNION ALL SELECT {ENDED_ROW} FROM {{schema}}.ended j WHERE page.place = 'ended' AND j.ctid = page.spot
) t ORDER BY page.n"""
    fetched = await run.run(SCAN_PAGE, _given(_listed(statement, query), values), often=False)
    rows = [record(row[3:]) for row in fetched]
    page = tuple(row for row, (_, _, fits, *_) in zip(rows, fetched, strict=True) if fits)
    scanned, behind = fetched[-1][:2] if fetched else (0, False)
    if not behind:
        return Page(page, None, total, scanned)
    return Page(
        page, queries.cursor_of(rows[-1], query.order), total, scanned, queries.moment_of(rows[-1], query.order)
    )


async def _fitting(run: Runner, query: Query, parts: Sequence[_Part], scan: int) -> int:
    """How many of the first `scan` rows of the order fit the query."""
    if not parts:
        return 0
    stream, values = _stream(parts, query, scan)
    return await _count(run, f"SELECT count(*) FROM ({stream}) s WHERE s.fits", values)


def _stream(parts: Sequence[_Part], query: Query, most: int) -> tuple[str, list[Any]]:
    """The first rows of these parts in order: the table and place of each, its sort keys, and whether it fits."""
    fits = _filter(query, LABEL_OF_ROW)
    order = ", ".join(f"j.{column} {way}" for column, way in ORDERS[query.order])
    selected, values = [], []
    for part in parts:
        source = f"{{schema}}.{part.table} j WHERE {part.where}"
        if part.sorted:  # OFFSET 0: else the index of the order could be read whole to find the few rows
            source = f"(SELECT *, ctid FROM {source} OFFSET 0) j"
        selected.append(
            f"(SELECT '{part.table}' AS place, j.ctid AS spot, coalesce({fits}, false) AS fits, {_keys(query.order)}"
            f" FROM {source} ORDER BY {order} LIMIT {most})"
        )
        values += [*fits.values, *part.where.values]
    return f"SELECT * FROM ({' UNION ALL '.join(selected)}) u {_merged(query.order)} LIMIT {most}", values


def _merged(order: str) -> str:
    """The clause that merges the rows of several parts. The parts of a queue simply follow one another: a part of one
    rank has no order by rank that the planner could merge, and it would sort all rows."""
    return "" if order == "queue" else f"ORDER BY {_sorts(order)}"


async def _narrowed(run: Runner, query: Query, scan: int) -> list[_Part]:
    """The parts of the order. If an index returns few rows for one of the filters, only these rows are read, and
    sorted."""
    parts = _in_order(query)
    if query.order in ("newest", "oldest"):  # their index begins and ends there
        parts = [part._replace(where=part.where.and_(_created(query))) for part in parts]
    if query.queue == defaults.SYSTEM_QUEUE:
        own, by_creation = _Where(*_of_system(query)), query.order in ("newest", "oldest")
        return [part._replace(where=part.where.and_(own), sorted=part.sorted or not by_creation) for part in parts]
    for conditions in _indexed(query) if parts else ():
        if await _are_few(run, conditions, {part.table for part in parts}, min(scan, NARROW)):
            return [
                _Part(part.table, part.where.and_(condition), sorted=True) for part in parts for condition in conditions
            ]
    return parts


def _indexed(query: Query) -> Iterator[list[_Where]]:
    """Each filter that an index serves, as conditions that no row fulfils twice."""
    if query.ids:
        yield [_Where().add(f"j.id = ANY({IDS})", text(list(dict.fromkeys(query.ids))))]
    if query.parent is not None:
        yield [_Where().add("j.parent = %s", escaped(query.parent))]
    if query.root is not None:
        root = escaped(query.root)
        yield [
            _Where().add("j.root = %s", root),
            _Where().add("j.id = %s AND j.root IS DISTINCT FROM %s", root, root),
        ]
    if query.label is not None:
        yield [_Where().add(LABEL, escaped(query.label))]
    if query.task is not None and _of_system(query):
        yield [_Where(*_of_system(query)).add("j.task = %s", escaped(query.task))]
    yield from _rare_kinds(query)


def _rare_kinds(query: Query) -> Iterator[list[_Where]]:
    """Conditions for rare kinds of jobs. An index finds these jobs, but not in the order of the page."""
    states = set(query.state)
    if query.ready == "blocked" or (query.ready == "scheduled" and query.order != "due"):
        yield [_Where(READY[query.ready])]
    elif states == {State.WAITING}:
        yield [_Where("j.state = 0 AND j.queue_position IS NULL AND j.blocked_on IS NULL")]
    elif states and states <= {State.FAILED, State.CANCELLED} and query.order != "ended":
        yield [_Where(f"j.state = {NUMBER[state]}", "j.state > 3") for state in sorted(states)]


async def _are_few(run: Runner, conditions: Sequence[_Where], tables: set[str], most: int) -> bool:
    counts, values = [], []
    for where in conditions:
        label = str(where) == LABEL  # counted in its own table: the join could read all of its rows
        for source in ["label l WHERE l.label = %s"] if label else [f"{table} j WHERE {where}" for table in tables]:
            counts.append(f"(SELECT count(*) FROM (SELECT FROM {{schema}}.{source} LIMIT {most + 1}) k)")
            values += where.values
    return await _count(run, f"SELECT {' + '.join(counts)}", values) <= most


async def _count(run: Runner, statement: str, values: Sequence[Any]) -> int:
    [(count,)] = await run.run(SCAN_COUNT, _given(statement, values), often=False)
    return int(count)


def _given(statement: str, values: Sequence[Any]) -> list[str]:
    """A statement, and its values as one array of texts, for a function that runs it in our schema."""
    numbers = itertools.count(1)
    sent = re.sub("%s", lambda _: f"($1)[{next(numbers)}]", renamed(statement).replace("{schema}.", ""))
    texts = (value if isinstance(value, str) else repr(value) for value in values)
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return [sent, "{" + ",".join(f'"{text}"' for text in quoted) + "}"]
