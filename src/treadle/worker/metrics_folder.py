"""Folds the stored metrics as they age, and deletes the oldest, in steps of a bounded size: a duty of the leader.

Two workers may do it at the same time: they store the same rows. See `treadle.metrics.folding`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from treadle.core import defaults
from treadle.metrics import fold, windows
from treadle.storage.contract import Storage

PAUSE: Final = 0.02  # s between two steps, so that jobs get their turn
SWEEP_EVERY: Final = 86_400.0  # s between two passes over everything that is kept


class MetricsFolder:
    """Folds if this is the worker's duty. Random intervals keep workers from folding at the same time."""

    def __init__(self, storage: Storage, is_duty: Callable[[], bool]) -> None:
        self._storage, self._is_duty = storage, is_duty
        self._swept: float | None = None  # when, by the storage's clock

    async def run(self, answered: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(defaults.FOLD_EVERY * random.uniform(0.5, 1.5))
            if self._is_duty():
                await self.once()
            answered("fold")

    async def once(self) -> None:
        """Fold everything that has come of age since the last call; once a day also what arrived late."""
        storage = self._storage
        now = (await storage.glance(1)).at
        whole = self._swept is None or now - self._swept >= SWEEP_EVERY
        for since, until in windows(now, whole):
            for folded in fold(await storage.read_metrics(since, until), now):
                await storage.store_metrics(folded.store, folded.remove)
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(PAUSE)
        if whole:
            self._swept = now
