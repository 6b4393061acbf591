"""Deletes rows past their retention, a few at a time, and ends the rests of limits that are over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from treadle.core import defaults
from treadle.storage.contract import Storage
from treadle.worker.rests import end_rests


class Pruner:
    """Prunes if this is the worker's duty. Random intervals keep workers from pruning at the same time."""

    def __init__(self, storage: Storage, is_duty: Callable[[], bool]) -> None:
        self._storage, self._is_duty = storage, is_duty
        self._pruned = True

    async def run(self, answered: Callable[[str], None]) -> None:
        while True:
            if self._pruned:  # otherwise the last one failed: try again at once
                await asyncio.sleep(defaults.PRUNE_EVERY * random.uniform(0.5, 1.5))
            self._pruned = False
            if self._is_duty():
                await end_rests(self._storage)
                more = True
                while more:
                    more = await self._storage.prune(defaults.PRUNE_STEP) == defaults.PRUNE_STEP
                    await asyncio.sleep(0.01)
            self._pruned = True
            answered("prune")
