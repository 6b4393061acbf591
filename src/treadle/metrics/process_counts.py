"""The counts of a process since it started, for scrapers that read them again and again.

Nothing is counted twice on the hot path: runs come from the cells of the worker's metrics, which are added up here when
their minute is over, and when a scraper reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from treadle.metrics.cells import Cell, Cells
from treadle.metrics.histogram import MOST, Histogram, add, bucket_of
from treadle.metrics.pairs import Counts, PairCounts, Pairs, is_own

NAMED: Final = 300  # tasks with numbers of their own: bounds a scrape to about 8,000 lines


class Numbers(Struct, kw_only=True):
    """The numbers of one or several processes since they started.

    cells     the runs by queue and task
    enqueued  (queue, task, jobs that were stored)
    lost      (queue, task, jobs whose lease had expired when this worker claimed them)
    lag       how late the event loop was, a sample every half second
    calls     the durations of calls to the storage, by method; failed ones included
    errors    the calls that failed, by method
    """

    cells: list[Cell] = []
    enqueued: Counts = []
    lost: Counts = []
    lag: Histogram = {}
    calls: dict[str, Histogram] = {}
    errors: dict[str, int] = {}


class ProcessCounts:
    """The counts of this process. They only grow. `numbers` may be called in any thread, everything else on the event
    loop of the worker."""

    def __init__(self) -> None:
        self._pairs = Pairs(NAMED)
        self._ended = Cells(self._pairs)
        self._current: list[Callable[[], Iterable[Cell]]] = []
        self._lock = threading.Lock()  # a cell must not be missing or counted twice while its minute ends
        self.enqueued, self.lost = PairCounts(self._pairs), PairCounts(self._pairs)
        self._lag: Histogram = {}
        self._calls: dict[str, Histogram] = {}
        self._errors: dict[str, int] = {}

    # --- runs

    def expect(self, tasks: Iterable[tuple[str, str]]) -> None:
        """Show 0 for these queues and tasks from now on: a series that begins at 1 has no increase in PromQL, so an
        alert would miss the first failure."""
        with self._lock:
            for queue, task in tasks:
                if not is_own(queue, task):
                    self._ended.of(queue, task)

    def follow(self, current: Callable[[], Iterable[Cell]]) -> None:
        """Count also the cells of the current minute of this recorder."""
        with self._lock:
            self._current.append(current)

    def minute_ended(self, cells: Iterable[Cell], begin: Callable[[], None]) -> None:
        """Keep these cells; `begin` makes their recorder forget them."""
        with self._lock:
            self._ended.add(cells)
            begin()

    def leave(self, current: Callable[[], Iterable[Cell]]) -> None:
        """Keep the cells of a recorder that counts no more."""
        with self._lock:
            self._ended.add(current())
            self._current.remove(current)

    # --- the event loop and the storage

    def lagged(self, seconds: float) -> None:
        """The event loop ran something this late."""
        bucket = bucket_of(seconds)
        self._lag[bucket] = self._lag.get(bucket, 0) + 1

    def called(self, verb: str, seconds: float) -> None:
        """A call to the storage has ended."""
        calls, bucket = self._calls.get(verb), bucket_of(seconds)
        if calls is None:
            calls = self._calls[verb] = {}
        calls[bucket] = calls.get(bucket, 0) + 1

    def failed(self, verb: str, seconds: float) -> None:
        """A call to the storage has failed."""
        self.called(verb, seconds)
        self._errors[verb] = self._errors.get(verb, 0) + 1

    # --- reading

    def numbers(self) -> Numbers:
        """All numbers so far."""
        whole = Cells(self._pairs)
        with self._lock:
            whole.add(self._ended.by_name.values())
            for current in self._current:
                whole.add(current())
        return Numbers(
            cells=list(whole.by_name.values()),
            enqueued=self.enqueued.counts(),
            lost=self.lost.counts(),
            lag=self._lag.copy(),
            calls={verb: calls.copy() for verb, calls in self._calls.copy().items()},
            errors=self._errors.copy(),
        )


class NumbersSum:
    """The sum of the numbers of several processes.

    pairs  the pairs of queue and task that have numbers of their own. Sums that share one object name the same pairs,
    so a count that only
           grows in each process grows in each sum
    """

    def __init__(self, pairs: Pairs) -> None:
        self._cells = Cells(pairs)
        self._enqueued, self._lost = PairCounts(pairs), PairCounts(pairs)
        self._lag: Histogram = {}
        self._calls: dict[str, Histogram] = {}
        self._errors: dict[str, int] = {}

    def add(self, more: Numbers) -> None:
        """Add the numbers of one process."""
        self._cells.add(more.cells)
        self._enqueued.add_all(more.enqueued)
        self._lost.add_all(more.lost)
        add(self._lag, more.lag)
        for verb, calls in more.calls.items():
            add(self._calls.setdefault(verb, {}), calls)
        _add(self._errors, more.errors)

    def numbers(self) -> Numbers:
        """The sum so far; later calls of `add` change it."""
        return Numbers(
            cells=list(self._cells.by_name.values()),
            enqueued=self._enqueued.counts(),
            lost=self._lost.counts(),
            lag=self._lag,
            calls=self._calls,
            errors=self._errors,
        )


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        into[name] = min(into.get(name, 0) + count, MOST)
