"""Reads the mark of a move from a storage of any kind."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import cast

from treadle.core.errors import StorageError
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Movable
from treadle.storage.transfer import NOT_HERE, MoveState, refusal, words

log = logging.getLogger("treadle")


async def mark_of(storage: Storage) -> MoveState | None:
    """The move that a storage takes part in; None also for a storage without marks. Raises StorageError."""
    return await cast("Movable", storage).read_mark() if storage.capabilities.marks else None


async def check_stays(storage: Storage) -> None:
    """Raise StorageMoved if the jobs of this storage were moved away. For calls that found or changed nothing, because
    the move may be the reason."""
    mark = await mark_of(storage)
    if mark is not None and mark.role == "gone":
        raise refusal(mark, "this storage")


async def warn_of_move(storage: Storage) -> None:
    """Log a warning if a storage that was just opened does not serve its jobs because of a move."""
    with suppress(StorageError):
        mark = await mark_of(storage)
        if mark is not None and mark.role in NOT_HERE:
            log.warning("%s", words(mark, "the storage of this app"))
