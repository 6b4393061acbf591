"""Pairs of queue and task under which a process counts, of a bounded number, so that no sender can fill its memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treadle.core import defaults
from treadle.core.model import NewJob
from treadle.core.ranges import OWN
from treadle.metrics.histogram import MOST

OTHER: Final = ""  # the task of the pair that counts all tasks without a pair of their own; also the queue of that pair

Counts = list[tuple[str, str, int]]
"""(queue, task, count)"""


def is_own(queue: str, task: str) -> bool:
    """Whether jobs of this queue and task are Treadle's own, or no jobs: rows without a task. They are not counted."""
    return queue == defaults.SYSTEM_QUEUE or not task or task.startswith(OWN)


class Pairs:
    """The pairs that are in use. Once there are too many, only the first ones keep a count of their own.

    most  pairs of their own. Jobs of other tasks count under (queue, OTHER), for `most` queues, then under
          (OTHER, OTHER)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._own, self._others = set[tuple[str, str]](), set[str]()

    def of(self, queue: str, task: str) -> tuple[str, str]:
        """The pair under which a job of this queue and task counts."""
        pair = queue, task
        if task != OTHER:
            if pair in self._own:
                return pair
            if len(self._own) < self._most:
                self._own.add(pair)
                return pair
        if queue in self._others:
            return queue, OTHER
        if queue != OTHER and len(self._others) < self._most:
            self._others.add(queue)
            return queue, OTHER
        return OTHER, OTHER


class PairCounts:
    """A count for each pair."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, queue: str, task: str, count: int = 1) -> None:
        """Count jobs of this queue and task."""
        pair = self._pairs.of(queue, task)
        self._counts[pair] = min(self._counts.get(pair, 0) + count, MOST)

    def add_jobs(self, jobs: Iterable[NewJob]) -> None:
        """Count these jobs, without Treadle's own. Consecutive jobs of one task cost 0.1 us each."""
        queue, task, count = OTHER, OTHER, 0
        for job in jobs:
            if job.task == task and job.queue == queue:
                count += 1
                continue
            if not is_own(queue, task):
                self.add(queue, task, count)
            queue, task, count = job.queue, job.task, 1
        if not is_own(queue, task):
            self.add(queue, task, count)

    def add_all(self, counts: Counts) -> None:
        """Add the counts of another process."""
        for queue, task, count in counts:
            self.add(queue, task, count)

    def counts(self) -> Counts:
        """(queue, task, count) of each pair. May be called in any thread."""
        return [(queue, task, count) for (queue, task), count in self._counts.copy().items()]
