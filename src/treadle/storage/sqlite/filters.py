"""The parts of a query as SQL conditions: what a row must match, which small sets have every match, and which rows
follow a cursor or precede a job.

An index is used only where its condition and its order are met: partial indexes need their condition in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from treadle.core import defaults
from treadle.core.model import State
from treadle.core.query_model import Query
from treadle.core.ranges import OWN
from treadle.storage.sqlite.rows import NUMBER, text

KEYS: Final = {
    "newest": "j.created_at, j.id",
    "oldest": "j.created_at, j.id",
    "ended": "j.ended_at, j.id",
    "queue": "j.queue, -j.rank, j.queue_position, j.id",
    "due": "j.due_at, j.id",
    "started": "j.started_at, j.id",
}
ORDERS: Final = {
    **KEYS,
    "newest": "j.created_at DESC, j.id DESC",
    "ended": "j.ended_at DESC, j.id",
    "queue": "j.queue, j.rank DESC, j.queue_position, j.id",
}
AFTER: Final = {
    "newest": "(j.created_at, j.id) < (?, ?)",
    "oldest": "(j.created_at, j.id) > (?, ?)",
    "ended": "j.ended_at <= ? AND NOT (j.ended_at = ? AND j.id <= ?)",
    "due": "(j.due_at, j.id) > (?, ?)",
    "started": "(j.started_at, j.id) > (?, ?)",
}


class Part(NamedTuple):
    """A piece of SQL and its values."""

    sql: str
    values: tuple[Any, ...] = ()

    def __and__(self, other: Part) -> Part:
        return Part(f"{self.sql} AND {other.sql}", self.values + other.values)


ALL: Final = Part("TRUE")
BAD: Final = frozenset({State.FAILED, State.CANCELLED})
HELD: Final = "j.state < 2 AND j.queue_position IS NULL"  # waiting, scheduled or blocked
SYSTEM: Final = Part(f"j.queue = '{defaults.SYSTEM_QUEUE}'")
MEMBERS: Final = {  # the rows that are part of an order
    "newest": ALL,
    "oldest": ALL,
    "ended": Part("j.ended_at IS NOT NULL"),
    "queue": Part("j.queue_position IS NOT NULL"),
    "due": Part("j.due_at IS NOT NULL AND j.state < 3"),
    "started": Part("j.state = 2"),
}
READY: Final = {
    "queued": Part("j.queue_position IS NOT NULL AND j.state = 1"),
    "scheduled": Part(f"{HELD} AND j.state = 1 AND j.blocked_on IS NULL"),
    "blocked": Part(f"{HELD} AND j.state = 1 AND j.blocked_on IS NOT NULL"),
}


def _in_states(states: frozenset[State]) -> Part:
    numbers = sorted(NUMBER[state] for state in states)
    # `=` instead of IN: then an index with a further column returns the rows in the order of that column
    return Part(f"j.state = {numbers[0]}" if len(numbers) == 1 else f"j.state IN ({','.join(map(str, numbers))})")


def _bad(states: frozenset[State]) -> Part:
    return Part("j.state > 3") & _in_states(states)


def _own(task: str) -> Part:
    return Part("j.task >= 'treadle.' AND j.task < 'treadle/' AND j.task = ?", (task,))


def _small_sets(query: Query) -> Iterator[Part]:
    """The conditions of a query whose rows an index lists."""
    if query.ids:
        yield Part("j.id IN (SELECT value FROM json_each(?))", (text(query.ids),))
    if query.label is not None:
        yield Part("j.seq IN (SELECT job FROM label WHERE label = ?)", (query.label,))
    if query.parent is not None:
        yield Part("j.parent = ?", (query.parent,))
    if query.root is not None:
        yield Part("(j.root = ? OR j.id = ?)", (query.root, query.root))


def filters(query: Query) -> Part:
    """All that a row must match, except for `ahead_of`."""
    matches = MEMBERS[query.order]
    if query.state:
        matches &= _in_states(frozenset(query.state))
    if query.ready is not None:
        matches &= READY[query.ready]
    for value, condition in (
        (query.task, "j.task = ?"),
        (query.queue, "j.queue = ?"),
        (query.before, "j.created_at < ?"),
        (query.since, "j.created_at >= ?"),
    ):
        if value is not None:
            matches &= Part(condition, (value,))
    for part in _small_sets(query):
        matches &= part
    return matches


def sets(query: Query) -> Iterator[Part]:
    """Sets of rows that an index lists and that have every match."""
    yield from _small_sets(query)
    if query.task is not None and query.task.startswith(OWN):
        yield _own(query.task)
    if query.queue == defaults.SYSTEM_QUEUE:
        yield SYSTEM
    if query.ready is not None:
        of_queue = query.ready == "queued" and query.queue is not None
        yield READY[query.ready] & Part("j.queue = ?", (query.queue,)) if of_queue else READY[query.ready]
    states = frozenset(query.state)
    if states == {State.RUNNING} or query.order == "started":
        yield MEMBERS["started"]
    if states == {State.WAITING}:
        yield Part(f"{HELD} AND j.state = 0")
    if states and states <= BAD:
        yield _bad(states)


def by_ending(query: Query) -> bool:
    """Whether an index has the matching rows in the order of their endings."""
    return len(query.state) == 1 and query.state[0] in BAD


def last_ended(query: Query, most: int, until: float | None) -> Part:
    """Rows that ended last: of the failed and the cancelled ones the last `most` that ended until then, by their index;
    of the succeeded ones, which have none, the `most` that are kept longest. With one `keep=` for all tasks these are
    the last ones, too."""
    states = frozenset(query.state) or frozenset({State.SUCCEEDED, *BAD})
    bound = "" if until is None else " AND ended_at <= ?"
    pieces = [
        Part(
            f"SELECT * FROM (SELECT seq FROM job WHERE state > 3 AND state = {NUMBER[state]}{bound} "
            f"ORDER BY ended_at DESC LIMIT {most})",
            () if until is None else (until,),
        )
        for state in sorted(states & BAD)
    ]
    if State.SUCCEEDED in states:
        kept = "SELECT seq FROM job WHERE expires_at IS NOT NULL AND state = 3 ORDER BY expires_at DESC"
        pieces.append(Part(f"SELECT * FROM ({kept} LIMIT {most})"))
    whole = " UNION ALL ".join(piece.sql for piece in pieces) or "SELECT 0 WHERE FALSE"
    return Part(f"j.seq IN ({whole})", tuple(value for piece in pieces for value in piece.values))


def ordered(query: Query) -> Part:
    """The rows of the order, narrowed by what its index can bound."""
    rows = MEMBERS[query.order]
    if query.order in ("newest", "oldest"):
        if query.task is not None and query.task.startswith(OWN):
            rows = _own(query.task)
        elif query.queue == defaults.SYSTEM_QUEUE:
            rows = SYSTEM
        for value, condition in ((query.before, "j.created_at < ?"), (query.since, "j.created_at >= ?")):
            if value is not None:
                rows &= Part(condition, (value,))
    elif query.order == "ended" and by_ending(query):
        rows &= _bad(frozenset(query.state))
    elif query.order == "queue" and query.queue is not None:
        rows &= Part("j.queue = ?", (query.queue,))
    elif query.order == "due" and query.ready == "scheduled":
        rows = READY["scheduled"] & rows
    return rows


def ahead(queue: str, rank: int, position: float, id: str) -> tuple[Part, ...]:
    """The jobs that are queued ahead of this position, in pieces of one index range each, in queue order."""
    there = MEMBERS["queue"] & Part("j.queue = ?", (queue,))
    return (
        there & Part("j.rank > ?", (rank,)),
        there & Part("j.rank = ? AND (j.queue_position, j.id) < (?, ?)", (rank, position, id)),
    )


def behind(queue: str, negated_rank: int, position: float, id: str) -> tuple[Part, ...]:
    """The jobs that are queued after this position, also in later queues, in pieces as above."""
    there = Part("j.queue = ?", (queue,))
    return (
        there & Part("j.rank = ? AND (j.queue_position, j.id) > (?, ?)", (-negated_rank, position, id)),
        there & Part("j.rank < ?", (-negated_rank,)),
        Part("j.queue > ?", (queue,)),
    )
