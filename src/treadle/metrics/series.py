"""`Metrics`, counts and quantiles over time, and its builder, which reads rows one by one.

GET /v1/metrics answers with the `Metrics` of `app.metrics.within(queues).read(...)` as it is; its JSON has `from` and
`to` for `start` and `end`. GET /v1/tasks and the overview read `totals` and `each`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, floor
from typing import Final, Literal

from msgspec import Struct

from treadle.core.query_model import MetricsRow
from treadle.metrics.cells import Cell, decode
from treadle.metrics.folding import SPANS
from treadle.metrics.histogram import MOST, quantiles

POINTS: Final = 1_000  # points of one series at most
STEPS: Final = (60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 86_400.0)  # s
ENOUGH: Final = 300  # points of a series for which no step was chosen, at most
RANKS: Final = (0.5, 0.95, 0.99)

Count = Literal["succeeded", "failed", "retried", "other"]


class QuantileSeries(Struct, frozen=True, kw_only=True):
    """Seconds for each point, off by at most 12 %; None where there is no sample."""

    p50: tuple[float | None, ...]
    p95: tuple[float | None, ...]
    p99: tuple[float | None, ...]


class Metrics(Struct, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """Counts and times of jobs, by points in time.

    start, end  the range, instants in seconds since 1970
    step        seconds between two points; a multiple of 60. It is longer than asked for if the rows of the range have
                longer spans, or if there were more than `POINTS` points
    at          the beginning of each point, a multiple of `step`; the last point may not be complete yet
    succeeded, failed, retried, other  exact counts for each point, see `Cell`
    run, wait   quantiles of how long runs took, and of how long their jobs were queued before, in seconds
    sampled     how many runs were timed
    since       beginning of the first row in the range; None: there is none
    unreadable  rows that could not be read, for example because a newer Treadle has written them
    """

    start: float
    end: float
    step: float
    at: tuple[float, ...]
    succeeded: tuple[int, ...]
    failed: tuple[int, ...]
    retried: tuple[int, ...]
    other: tuple[int, ...]
    run: QuantileSeries
    wait: QuantileSeries
    sampled: int
    since: float | None
    unreadable: int = 0

    def rates(self, count: Count) -> tuple[float, ...]:
        """Jobs a second for each point; the last point counts until `end`."""
        numbers: tuple[int, ...] = {
            "succeeded": self.succeeded,
            "failed": self.failed,
            "retried": self.retried,
            "other": self.other,
        }[count]
        return tuple(n / max(1.0, min(self.step, self.end - start)) for n, start in zip(numbers, self.at, strict=True))


class Percentiles(Struct, frozen=True, kw_only=True):
    """Seconds, off by at most 12 %; None: there is no sample."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Totals(Struct, frozen=True, kw_only=True):
    """The counts and times of one queue or task over a whole range; the fields are those of `Metrics`."""

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    other: int = 0
    run: Percentiles = Percentiles()
    wait: Percentiles = Percentiles()
    sampled: int = 0


def step_for(start: float, end: float, least: float | None, rows: Sequence[MetricsRow]) -> float:
    """The seconds between two points: at least those asked for, and a multiple of the longest span of these rows."""
    length = end - start
    enough = [step for step in STEPS if length <= step * ENOUGH]
    step = (enough[0] if enough else STEPS[-1]) if least is None else least
    coarsest = max((row.span for row in rows if row.span in SPANS), default=SPANS[0])
    step = ceil(step / coarsest) * coarsest
    while _points(start, end, step) > POINTS:
        step += coarsest * max(1, floor(step / coarsest))
    return step


def _points(start: float, end: float, step: float) -> int:
    return ceil(end / step) - floor(start / step)


class SeriesBuilder:
    """Builds series of the rows between two instants.

    step   seconds between two points, see `step_for`
    by     one series for each queue or task; None: one for all, under the name ""
    queue, task  only jobs of these
    queues       only jobs of these queues; None: of all
    """

    def __init__(
        self,
        start: float,
        end: float,
        step: float,
        by: Literal["queue", "task"] | None = None,
        queue: str | None = None,
        task: str | None = None,
        queues: Collection[str] | None = None,
    ) -> None:
        self._start, self._end, self._step, self._by = start, end, step, by
        self._queue, self._task, self._queues = queue, task, queues
        self._first, self._count = floor(start / step), _points(start, end, step)
        self._points: dict[str, dict[int, Cell]] = {}
        self._since: float | None = None
        self._unreadable = 0

    def add(self, row: MetricsRow) -> None:
        """Add the cells of a row that fit the filter."""
        number = floor(row.at / self._step) - self._first
        cells = decode(row.data) if row.span in SPANS else None
        if cells is None:
            self._unreadable += 1
        elif 0 <= number < self._count:
            self._since = row.at if self._since is None else min(self._since, row.at)
            for cell in cells:
                if self._fits(cell):
                    self._add(number, cell)

    def _fits(self, cell: Cell) -> bool:
        return (
            (self._queue is None or cell.queue == self._queue)
            and (self._task is None or cell.task == self._task)
            and (self._queues is None or cell.queue in self._queues)
        )

    def _add(self, number: int, cell: Cell) -> None:
        name = "" if self._by is None else cell.queue if self._by == "queue" else cell.task
        points = self._points.setdefault(name, {})
        point = points.get(number)
        if point is None:
            point = points[number] = Cell(cell.queue, cell.task)
        point.add(cell)

    @property
    def is_empty(self) -> bool:
        """Whether no cell fitted the filter so far."""
        return not self._points

    def metrics(self) -> Metrics:
        """The series of all jobs that fit the filter."""
        return self._series(self._points.get("", {}))

    def each(self) -> dict[str, Metrics]:
        """The series by name of queue or task. Tasks without a cell of their own are left out."""
        return {name: self._series(points) for name, points in sorted(self._points.items()) if name}

    def totals(self) -> dict[str, Totals]:
        """The totals by name of queue or task. Tasks without a cell of their own are left out."""
        return {name: _totals(points.values()) for name, points in sorted(self._points.items()) if name}

    def _series(self, points: dict[int, Cell]) -> Metrics:
        none = Cell("", "")
        cells = [points.get(number, none) for number in range(self._count)]
        return Metrics(
            start=self._start,
            end=self._end,
            step=self._step,
            at=tuple((self._first + number) * self._step for number in range(self._count)),
            succeeded=tuple(cell.succeeded for cell in cells),
            failed=tuple(cell.failed for cell in cells),
            retried=tuple(cell.retried for cell in cells),
            other=tuple(cell.other for cell in cells),
            run=_quantile_series([cell.run for cell in cells]),
            wait=_quantile_series([cell.wait for cell in cells]),
            sampled=min(sum(sum(cell.run.values()) for cell in points.values()), MOST),
            since=self._since,
            unreadable=self._unreadable,
        )


def _quantile_series(histograms: list[dict[int, int]]) -> QuantileSeries:
    p50, p95, p99 = zip(*[quantiles(histogram, RANKS) for histogram in histograms], strict=True)
    return QuantileSeries(p50=p50, p95=p95, p99=p99)


def _totals(cells: Collection[Cell]) -> Totals:
    whole = Cell("", "")
    for cell in cells:
        whole.add(cell)
    return Totals(
        succeeded=whole.succeeded,
        failed=whole.failed,
        retried=whole.retried,
        other=whole.other,
        run=_percentiles(whole.run),
        wait=_percentiles(whole.wait),
        sampled=sum(whole.run.values()),
    )


def _percentiles(histogram: dict[int, int]) -> Percentiles:
    p50, p95, p99 = quantiles(histogram, RANKS)
    return Percentiles(p50=p50, p95=p95, p99=p99)
