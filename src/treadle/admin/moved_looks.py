"""Looks at a storage whose jobs live elsewhere: each answers old rows, so the caller is warned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from treadle.admin.known_names import warn
from treadle.core.clock import monotonic
from treadle.errors import OldRows, StorageError
from treadle.storage.contract import Storage
from treadle.storage.transfer import NOT_HERE, MoveState, mark_of, refusal, words

log = logging.getLogger("treadle")

FRESH: Final = 10.0  # s for which a mark that was read is believed: a look costs a second trip that often at most
READING: Final = 2.0  # s that reading it may take
HERE: Final = "the storage of this app"


class Moved:
    """Whether the jobs live elsewhere since a move."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage
        self._mark: MoveState | None = None
        self._read: float | None = None  # when
        self._logged = False

    async def looked(self, call: str) -> None:
        """Warn (OldRows) that what this call answers is old, if it is. Raises nothing."""
        if (found := await self.words()) is not None:
            if not self._logged:
                self._logged = True
                log.warning("%s", found)
            warn(f"{call}: {found}", OldRows)

    async def words(self) -> str | None:
        """What a person must know of such a storage; None: its jobs are here, or that cannot be known now."""
        mark = await self._current()
        return None if mark is None else words(mark, HERE)

    async def check(self) -> None:
        """Raise StorageMoved if the jobs live elsewhere, so that nobody waits for a row that no longer changes."""
        mark = await self._current()
        if mark is not None and mark.role == "gone":
            raise refusal(mark, "this storage")

    async def _current(self) -> MoveState | None:
        if self._read is None or monotonic() - self._read > FRESH:
            self._read = monotonic()  # before it is read: calls made meanwhile do not read it too
            try:
                async with asyncio.timeout(READING):
                    found = await mark_of(await self._storage())
            except (StorageError, TimeoutError):
                found = self._mark
            self._mark = found if found is not None and found.role in NOT_HERE else None
        return self._mark

    def forget(self) -> None:
        """Read the mark at the next look."""
        self._read = None
