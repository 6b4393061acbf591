"""Warns callers that read from a storage whose jobs have moved: its rows are old."""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Final

from treadle.admin.known_names import listener
from treadle.core.clock import monotonic
from treadle.core.errors import OldRows, StorageError, is_ours
from treadle.storage import NOT_HERE, MoveState, mark_of, refusal, words
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

FRESH: Final = 10.0  # s for which the mark is cached, so that reads rarely cost a second round trip
READING: Final = 2.0  # s that reading the mark may take
HERE: Final = "the storage of this app"


class Moved:
    """Checks whether the jobs of a storage have moved."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage
        self._mark: MoveState | None = None
        self._read: float | None = None  # when the mark was read last
        self._logged = False

    async def looked(self, call: str) -> None:
        """Warn (OldRows) if the rows that this call returns are old. Raises nothing."""
        if (warning := await self.words()) is not None:
            if not self._logged:
                self._logged = True
                log.warning("%s", warning)
            if (collected := listener()) is not None:
                collected.words.append(f"{call}: {warning}")
                return
            frame, depth = sys._getframe(), 2
            while frame.f_back is not None and is_ours(frame.f_back.f_code.co_filename):
                frame, depth = frame.f_back, depth + 1
            warnings.warn(f"{call}: {warning}", OldRows, stacklevel=depth)

    async def words(self) -> str | None:
        """The warning about a storage that is part of a move; None if its jobs are here, or if the read fails."""
        mark = await self._current()
        return None if mark is None else words(mark, HERE)

    async def check(self) -> None:
        """Raise StorageMoved if the jobs have moved, so that no caller waits for a row that no longer changes."""
        mark = await self._current()
        if mark is not None and mark.role == "gone":
            raise refusal(mark, "this storage")

    async def _current(self) -> MoveState | None:
        if self._read is None or monotonic() - self._read > FRESH:
            self._read = monotonic()  # set before reading, so that concurrent calls do not read it too
            try:
                async with asyncio.timeout(READING):
                    mark = await mark_of(await self._storage())
            except (StorageError, TimeoutError):
                mark = self._mark
            self._mark = mark if mark is not None and mark.role in NOT_HERE else None
        return self._mark

    def forget(self) -> None:
        """Drop the cached mark."""
        self._read = None
