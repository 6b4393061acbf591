"""Stops running jobs whose timeout or deadline is over: one heap and one timer for all jobs of a worker."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from treadle.worker.running_job import RunningJob

SWEEP = 128  # entries in the heap above which those of ended runs are removed: each keeps a job's arguments in memory


class Timeouts:
    """The timeouts and deadlines of running jobs. `asyncio.timeout` costs 2.3 us a job; an entry of this heap costs 0.3
    us. Entries of ended runs are skipped, and removed when there are many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, RunningJob, str]] = []
        self._number = count()
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at = SWEEP

    def add(self, seconds: float, run: RunningJob, why: str) -> None:
        """Stop the run after this many seconds; `why` is "timeout" or "deadline"."""
        when = self._loop.time() + max(0.0, seconds)
        heapq.heappush(self._heap, (when, next(self._number), run, why))
        if self._heap[0][2] is run:
            self._arm()
        elif len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP, 2 * len(self._heap))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        now = self._loop.time() + 0.000_5
        while self._heap and self._heap[0][0] <= now:
            _, _, run, why = heapq.heappop(self._heap)
            run.stop(why)
        while self._heap and self._heap[0][2].ended:
            heapq.heappop(self._heap)
        self._timer = None
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
