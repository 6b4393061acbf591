"""Adds up what the processes of a fleet have counted, those that have ended included, so that no counter goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from treadle.metrics import NAMED, Numbers, NumbersSum, Pairs
from treadle.worker.fleet.worker_process import WorkerProcess

EVERY: Final = 10.0  # s between two requests without a scraper: a process that is killed loses the counts since then
PATIENCE: Final = 1.0  # s for the replies; the last numbers of a process that does not reply count


class FleetCounts:
    """All calls belong to the event loop of the fleet. `size`: how many processes live, and how many restarted."""

    def __init__(self, size: Callable[[], tuple[int, int]]) -> None:
        self.size = size
        self._pairs = Pairs(NAMED)
        self._ended = NumbersSum(self._pairs)
        self._live: set[WorkerProcess] = set()

    def follow(self, process: WorkerProcess) -> None:
        """Count a process, even after its end."""
        self._live.add(process)
        process.over.add_done_callback(lambda _: self._end(process))

    def _end(self, process: WorkerProcess) -> None:
        self._live.discard(process)
        if process.numbers is not None:
            self._ended.add(process.numbers)

    async def numbers(self) -> Numbers:
        """The sum over all processes, with the latest numbers that each has sent."""
        await self._ask()
        whole = NumbersSum(self._pairs)
        whole.add(self._ended.numbers())
        for process in self._live:
            if process.numbers is not None:
                whole.add(process.numbers)
        return whole.numbers()

    async def run(self) -> None:
        """Ask all processes again and again."""
        while True:
            await asyncio.sleep(EVERY)
            await self._ask()

    async def _ask(self) -> None:
        asking = [process.count() for process in self._live if process.claims.is_set()]
        if asking:
            await asyncio.wait(asking, timeout=PATIENCE)
