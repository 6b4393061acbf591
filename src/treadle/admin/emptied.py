"""Notices that a storage was emptied: a flush, an eviction, a fail-over to an empty server, a dropped schema.

Each storage keeps a mark among the rows of metrics, at a time that no other call reads: the mark slows no other call
down, and no list of jobs shows it. A process compares only with the marks that it has seen itself.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.clock import moment_text
from treadle.core.errors import UNREADABLE
from treadle.core.query_model import MetricsRow, Query
from treadle.storage.contract import Storage

AT: Final = 1e11  # s since 1970, the year 5138
SPAN: Final = 60.0
SKEW: Final = 60.0  # s by which the clock of the storage may be off
RENEWED: Final = 86_400.0  # s between two writes of a mark: on Redis metrics expire
RECENT: Final = 7 * 86_400.0  # s for which other processes report it


class Mark(Struct, frozen=True, omit_defaults=True):
    """emptied: when the first worker noticed that the storage had lost its marks."""

    emptied: float | None = None


class EmptiedWatch:
    """Compares the marks of a storage with those that this process has seen. Workers that start at the same time may
    store one each."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], now: Callable[[], float]) -> None:
        self._storage, self._now = storage, now
        self.forget()

    def forget(self) -> None:
        """Forget what was seen, because another storage is used from now on."""
        self._known = frozenset[str]()
        self._seen_at = self._stored_at = 0.0
        self._noticed: float | None = None
        self._is_new = False  # whether `_noticed` is news that no call of `keep` has returned

    async def keep(self) -> bool:
        """Store a mark if there is none, and renew it. Returns whether the storage was emptied since the last call.
        Raises StorageError."""
        storage = await self._storage()
        marks = await storage.read_metrics(AT, AT + SPAN)
        await self._compare(storage, marks)
        self._stored_at = self._stored_at or self._now()
        if not marks or self._now() - self._stored_at > RENEWED:
            row = marks[0] if marks else _new_mark(self._noticed)
            with suppress(Exception):  # a full server, or a storage without metrics, must not stop a worker
                await storage.store_metrics([row])
                self._known |= {row.source}
                self._stored_at = self._now()
        is_new, self._is_new = self._is_new, False
        return is_new

    async def look(self) -> str | None:
        """Compare without storing a mark, and say what is known. None: it was not emptied. Raises StorageError."""
        storage = await self._storage()
        marks = await storage.read_metrics(AT, AT + SPAN)
        await self._compare(storage, marks)
        moments = [mark.emptied for row in marks if (mark := _read(row)).emptied is not None]
        emptied_at = max([moment for moment in moments if self._now() - moment < RECENT], default=self._noticed)
        if emptied_at is None:
            return None
        return f"the storage was found empty at {moment_text(emptied_at)}, and the jobs that it had before are gone"

    async def _compare(self, storage: Storage, marks: Sequence[MetricsRow]) -> None:
        """Compare with the marks seen before. A lost mark alone proves nothing: Redis may drop metrics, which are the
        only keys with a time to live."""
        seen = frozenset(row.source for row in marks)
        if self._known and not self._known & seen:
            oldest = (await storage.find(Query(order="oldest", limit=1))).records
            if not oldest or oldest[0].created_at > self._seen_at - SKEW:
                self._noticed, self._is_new = self._now(), True
        self._known, self._seen_at = seen, self._now()


def _new_mark(emptied: float | None) -> MetricsRow:
    return MetricsRow(at=AT, span=SPAN, source=os.urandom(16).hex(), data=msgspec.json.encode(Mark(emptied)))


def _read(row: MetricsRow) -> Mark:
    try:
        return msgspec.json.decode(row.data, type=Mark)
    except UNREADABLE:
        return Mark()
