"""The groups in which the SQL storages keep their counts: queue, task and a letter for the kind; after the letter of
blocked jobs comes the limit that blocks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from treadle.core.model import Record, State
from treadle.core.query_model import Count, Kind, QueueGlance
from treadle.storage.queries import Group, kept_counts, kept_glances, merged_glances

LETTERS: Final[Mapping[str, Kind]] = {
    "w": "waiting",
    "q": "queued",
    "s": "scheduled",
    "b": "blocked",
    "r": "running",
    "d": "succeeded",
    "f": "failed",
    "c": "cancelled",
}
QUEUED: Final = "q"
SCHEDULED: Final = "s"
RUNNING: Final = "r"
BY_STATE: Final = tuple("wsrdfc")
"""The letter of each state by its number; that of a ready job depends on more."""
_OF_STATE: Final = dict(zip(State, BY_STATE, strict=True))

_LETTER_OF: Final = {kind: letter for letter, kind in LETTERS.items()}

Row = tuple[str, str, str, int]
"""Queue, task, kind as stored, jobs."""


def letter_of(row: Record) -> str:
    """The kind of a row, as stored with its count."""
    if row.state is not State.READY:
        return _OF_STATE[row.state]
    if row.queue_position is not None:
        return QUEUED
    return SCHEDULED if row.blocked_on is None else f"b{row.blocked_on}"


class KeptCounts(Struct):
    """The kept counts of a storage, as read: the rows, the first queue position of each queue, and the time."""

    rows: Sequence[Row]
    heads: Mapping[str, float]
    now: float

    def counts(self) -> tuple[Count, ...]:
        """The counts of `stats`."""
        return kept_counts(self._by_task(), self.heads, self.now)

    def blocked(self) -> dict[str, int]:
        """How many jobs each limit blocks."""
        blocked: Counter[str] = Counter()
        for _, _, kind, jobs in self.rows:
            if kind[0] == "b":
                blocked[kind[1:]] += jobs
        return blocked

    def glance(self, most: int) -> tuple[tuple[QueueGlance, ...], tuple[str, ...]]:
        """The queues of a glance, and the kinds whose number it bounds."""
        return merged_glances([(kept_glances(self._by_task(), self.heads, self.now), ())], most)

    def _by_task(self) -> Counter[tuple[str, str, Kind]]:
        """The number of jobs by queue, task and kind."""
        kept: Counter[tuple[str, str, Kind]] = Counter()
        for queue, task, kind, jobs in self.rows:
            kept[queue, task, LETTERS[kind[0]]] += jobs
        return kept


def kind_as_stored(group: Group) -> str:
    """The kind of a group of `queries.drifts` as it is stored."""
    return f"{_LETTER_OF[group[2]]}{group[3]}"


def groups(rows: Iterable[Row]) -> dict[Group, int]:
    """Rows as the groups of `queries.drifts`."""
    return {(queue, task, LETTERS[kind[0]], kind[1:]): jobs for queue, task, kind, jobs in rows}
