"""Duties of the leader: it prunes rows, ends the rests of limits, cleans the blob store and folds metrics."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.core.limit_model import Resume
from treadle.metrics import fold, windows
from treadle.storage import Payloads
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

PAUSE: Final = 0.02  # s between two steps of folding, so that jobs get their turn
SWEEP_EVERY: Final = 86_400.0  # s between two folds of everything that is kept
STEP: Final = 500  # changes of limits in one call: bounds the time for which it blocks the storage


class Collector:
    """Deletes texts of the blob store whose jobs are gone."""

    def __init__(self, storage: Payloads, is_duty: Callable[[], bool]) -> None:
        self._storage, self._is_duty = storage, is_duty
        self._refused = False

    async def run(self, answered: Callable[[str], None]) -> None:
        while True:
            began = time.monotonic()
            if self._is_duty():
                await self._round()
            answered("collect")
            took = time.monotonic() - began
            await asyncio.sleep(max(defaults.COLLECT_EVERY, took * defaults.COLLECT_SHARE))

    async def _round(self) -> None:
        try:
            done = await self._storage.collect(defaults.COLLECT_AGE)
        except BadOption as error:
            if not self._refused:
                log.warning("the blob store is not cleaned: %s", error)
            self._refused = True
            return
        if done.deleted:
            log.info("deleted %d texts (%d bytes) of jobs that are gone", done.deleted, done.deleted_bytes)


class MetricsFolder:
    """Folds the stored metrics as they age, and deletes the oldest, in steps of a bounded size.

    Random intervals keep workers from folding at the same time. Two that do it store the same rows.
    """

    def __init__(self, storage: Storage, is_duty: Callable[[], bool]) -> None:
        self._storage, self._is_duty = storage, is_duty
        self._swept: float | None = None  # when it last swept, by the storage's clock

    async def run(self, answered: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(defaults.FOLD_EVERY * random.uniform(0.5, 1.5))
            if self._is_duty():
                await self.once()
            answered("fold")

    async def once(self) -> None:
        """Fold everything that has come of age since the last call; once a day, also rows that arrived late."""
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


async def end_rests(storage: Storage) -> None:
    """End each rest (`Defer(limit=)`) that is over by the storage's clock. A rest that is prolonged meanwhile stays.

    Normally the job that paused the limit resumes it. That job may be gone: an operator cancelled it, or a worker
    stalled with the pause in flight until another worker had ended the rest, because no version fences a change of a
    limit.
    """
    pauses = [pause for use in await storage.limits(use=False) for pause in use.pauses]
    ends = {pause.name: pause.until for pause in pauses if pause.why == "held" and pause.until is not None}
    if not ends:
        return
    now = (await storage.glance(1)).at
    over = [Resume(name, "held", until) for name, until in ends.items() if until <= now]
    for first in range(0, len(over), STEP):
        await storage.set_limits(over[first : first + STEP])


class Pruner:
    """Deletes rows past their retention, a few at a time. Random intervals keep workers from pruning at the same
    time."""

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
