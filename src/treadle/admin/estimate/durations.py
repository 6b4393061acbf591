"""How long runs take: drawn from the measured times of the task, or of the most similar jobs that were measured."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from treadle.core.query_model import MetricsRow
from treadle.metrics import Cell, add, decode, edges

ASSUMED: Final = 1.0  # s that a run takes if nothing was measured
MANY: Final = 300  # measured runs that are enough to know their distribution
ENOUGH: Final = 5  # a task with this many runs is estimated from its own times


class Sampler:
    """Draws durations from one histogram."""

    def __init__(self, histogram: Mapping[int, int]) -> None:
        self._histogram, self._buckets = histogram, sorted(histogram)
        self._sums = list(accumulate(histogram[bucket] for bucket in self._buckets))
        self.count = self._sums[-1] if self._sums else 0

    @property
    def mean(self) -> float:
        return sum(sum(edges(bucket)) / 2 * n for bucket, n in self._histogram.items()) / max(1, self.count)

    def again(self, rng: random.Random) -> Sampler:
        """The times that another sample of the same size might have had: with few measured runs they are uncertain."""
        if not 0 < self.count <= MANY:
            return self
        histogram: dict[int, int] = {}
        for _ in range(self.count):
            bucket = self._buckets[bisect_left(self._sums, rng.random() * self.count)]
            histogram[bucket] = histogram.get(bucket, 0) + 1
        return Sampler(histogram)

    def draw(self, rng: random.Random) -> float:
        low, high = edges(self._buckets[bisect_left(self._sums, rng.random() * self.count)])
        return low + (high - low) * rng.random()

    def rest(self, elapsed: float, rng: random.Random) -> float:
        """How much longer a run takes that has run for `elapsed` s."""
        first = next((index for index, bucket in enumerate(self._buckets) if edges(bucket)[1] > elapsed), None)
        if first is None:  # longer than all that were measured: it may take as long again
            return elapsed * rng.random()
        gone = self._sums[first - 1] if first else 0
        index = bisect_left(self._sums, gone + rng.random() * (self.count - gone))
        low, high = edges(self._buckets[min(index, len(self._buckets) - 1)])
        low = max(low, elapsed)
        return low + max(0.0, high - low) * rng.random() - elapsed


class Durations:
    """The run times by queue and task, and the share of runs that are followed by a retry.

    unmeasured  the tasks for which other times had to be used, with what was used
    """

    def __init__(self, rows: Iterable[MetricsRow], queues: tuple[str, ...] = ()) -> None:
        self._cells: dict[tuple[str, str], Cell] = {}
        self._samplers: dict[tuple[str, str], Sampler] = {}
        self.unmeasured: dict[str, str] = {}
        for row in rows:
            for cell in decode(row.data) or ():
                if not queues or cell.queue in queues:
                    for key in {(cell.queue, cell.task), ("", cell.task), (cell.queue, ""), ("", "")}:
                        self._add(key, cell)

    def _add(self, key: tuple[str, str], cell: Cell) -> None:
        known = self._cells.setdefault(key, Cell(*key))
        add(known.run, cell.run)
        known.succeeded += cell.succeeded
        known.failed += cell.failed
        known.retried += cell.retried

    def knows(self, queue: str, task: str) -> bool:
        cell = self._cells.get((queue, task))
        return cell is not None and sum(cell.run.values()) >= ENOUGH

    def of(self, queue: str, task: str) -> Sampler | None:
        """The times of the most similar jobs; None if nothing was measured."""
        known = self._samplers.get((queue, task))
        if known is not None:
            return known if known.count else None
        sampler = Sampler({})
        steps = {(queue, task): "", ("", task): "other queues", (queue, ""): "other tasks", ("", ""): "all tasks"}
        for key, source in steps.items():
            if self.knows(*key) or (key == (queue, task) and key in self._cells and self._cells[key].run):
                sampler = Sampler(self._cells[key].run)
                if source:
                    self.unmeasured[task] = f"the times of {source}"
                break
        else:
            self.unmeasured[task] = f"{ASSUMED:g} s a run"
        self._samplers[queue, task] = sampler
        return sampler if sampler.count else None

    def mean(self, queue: str, task: str) -> float:
        sampler = self.of(queue, task)
        return sampler.mean if sampler is not None else ASSUMED

    def retried(self, queue: str, task: str) -> float:
        """The share of runs that fail and are tried again."""
        cell = self._cells.get((queue, task))
        runs = cell.succeeded + cell.failed + cell.retried if cell is not None else 0
        return cell.retried / runs if cell is not None and runs >= ENOUGH else 0.0


class RunTimes:
    """The durations of one virtual run. They differ from run to run as much as the measured durations do."""

    def __init__(self, durations: Durations, rng: random.Random) -> None:
        self._durations, self._rng = durations, rng
        self._samplers: dict[tuple[str, str], Sampler | None] = {}

    def _of(self, queue: str, task: str) -> Sampler | None:
        key = queue, task
        if key not in self._samplers:
            known = self._durations.of(queue, task)
            self._samplers[key] = known.again(self._rng) if known is not None else None
        return self._samplers[key]

    def draw(self, queue: str, task: str) -> float:
        """How long a run takes, in seconds."""
        sampler = self._of(queue, task)
        return sampler.draw(self._rng) if sampler is not None else ASSUMED

    def rest(self, queue: str, task: str, elapsed: float) -> float:
        """How much longer a run takes that has run for `elapsed` s."""
        sampler = self._of(queue, task)
        if sampler is not None:
            return sampler.rest(elapsed, self._rng)
        return max(ASSUMED - elapsed, elapsed * self._rng.random())
