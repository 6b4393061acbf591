"""Reads the topics that a function noted and returned with its rows, and writes the payloads that carry them.

Topics are not notified inside the transaction that wrote the rows. A commit that notifies holds a lock of the whole
server until it is on disk, so such commits are flushed one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from treadle.storage.postgres.connection import Row, Value
from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.rows import escaped, unescaped
from treadle.storage.postgres.statements import channel_of

KINDS: Final = ("say", "ends")  # queues and workers; jobs
MOST: Final = 7_900  # bytes of a payload; the server accepts less than 8,000
ALL: Final = {"say": ["queue:*", "worker:*"], "ends": ["job:*"]}

# It writes no WAL before its commit, so the commit waits for no flush and holds that lock for microseconds. The setting
# makes sure of it.
NOTIFY: Final = (
    "SELECT set_config('synchronous_commit', 'off', true) "
    "UNION ALL SELECT pg_notify(key, value)::text FROM json_each_text($1::json)"
)

_noted = msgspec.json.Decoder(list[str | None]).decode
_encode = msgspec.json.encode


class Noted(NamedTuple):
    """Topics to publish after the commit. `transaction`: the user's transaction; None: a call of ours, which has
    committed."""

    transaction: str | None
    topics: list[str]


class Caller(Runner, Protocol):
    """A runner whose `call` runs statements that may note topics."""

    async def call(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        """The rows of a statement made by `noting`; its topics are published after the commit."""
        ...


def noting(statement: str, columns: int) -> str:
    """Adds a row to the end of what the statement returns. Its last column has the topics as text, or NULL."""
    topics = "{schema}.noted_topics({schema}.channel('say'), {schema}.channel('ends'))"
    return f"{statement} UNION ALL SELECT {'NULL, ' * (columns - 1)}{topics}"


def take_noted(rows: list[Row]) -> Noted | None:
    """Remove the row of topics, and return the topics."""
    [*_, notes] = rows.pop()
    if notes is None:
        return None
    transaction, *topics = _noted(notes)
    return Noted(transaction, [unescaped(topic) for topic in topics if topic is not None])


def kind_of(topic: str) -> str:
    return "ends" if topic.startswith("job:") else "say"


def payloads(schema: str, topics: Iterable[str]) -> str:
    """The parameter of NOTIFY: channels and their payloads."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        by_kind[kind_of(topic)].append(escaped(topic))
    carried = {kind: _encode(names) for kind, names in by_kind.items()}
    return _encode(
        {
            channel_of(schema, kind): (payload if len(payload) <= MOST else _encode(ALL[kind])).decode()
            for kind, payload in carried.items()
        }
    ).decode()
