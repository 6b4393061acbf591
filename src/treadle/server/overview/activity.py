"""Rates, quantiles and sparks by queue, from the rows of metrics of the last minutes. Pure.

A worker stores its current minute again every 10 s, with larger counts. The jobs that were added since the last read
count in the periods since then, so a spark is finer than the minutes of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import floor
from typing import Final

from msgspec import Struct

from treadle.core.query_model import MetricsRow
from treadle.metrics import MINUTE, Cell, decode, quantiles
from treadle.server.overview.views import Rates

PERIOD: Final = 10.0  # s of one point of a spark
PERIODS: Final = 30
SPAN: Final = PERIOD * PERIODS
LATE: Final = 15.0  # s after its end until all workers have stored a minute: they do it every 10 s
NONE: Final = (0.0,) * PERIODS


class Activity(Struct, frozen=True):
    """The last minutes of each queue.

    minute  the last full minute: one cell for each queue
    sparks  jobs that succeeded or failed, by queue, in PERIODS periods, the oldest first
    """

    minute: Mapping[str, Cell] = {}
    sparks: Mapping[str, tuple[float, ...]] = {}

    def ended_rate(self, queue: str) -> float:
        """Jobs per second of a queue."""
        cell = self.minute.get(queue)
        return 0.0 if cell is None else (cell.succeeded + cell.failed) / MINUTE

    def spark(self, queue: str) -> tuple[float, ...]:
        return self.sparks.get(queue, NONE)

    def rates(self, queues: Collection[str] = ()) -> Rates:
        """The rates of these queues together; (): of all queues."""
        whole = Cell("", "")
        for name in queues or self.minute:
            if (cell := self.minute.get(name)) is not None:
                whole.add(cell)
        run_p50, run_p95 = quantiles(whole.run, (0.5, 0.95))
        wait_p50, wait_p95 = quantiles(whole.wait, (0.5, 0.95))
        return Rates(
            succeeded=whole.succeeded / MINUTE,
            failed=whole.failed / MINUTE,
            retried=whole.retried / MINUTE,
            run_p50=run_p50,
            run_p95=run_p95,
            wait_p50=wait_p50,
            wait_p95=wait_p95,
        )


class Recent:
    """The rows of the last minutes, as far as they have been read."""

    def __init__(self) -> None:
        self._rows: dict[tuple[float, float, str], tuple[float, dict[str, Cell]]] = {}  # last read, by queue
        self._periods: dict[int, dict[str, float]] = {}  # number of a period -> jobs by queue
        self._read: float | None = None

    def since(self, now: float) -> float:
        """The instant from which rows must be read again: the rows of the last minutes may have changed."""
        if self._read is None or now - self._read > SPAN:
            return now - SPAN - MINUTE
        return self._read - MINUTE - LATE

    @property
    def has_any(self) -> bool:
        """Whether any process has stored metrics in the last minutes."""
        return bool(self._rows)

    def add(self, row: MetricsRow, now: float) -> bool:
        """Count the jobs that were added to a row of metrics since it was last read. Returns whether the row could be
        read."""
        cells = decode(row.data)
        if cells is None:
            return False
        queues: dict[str, Cell] = {}
        for cell in cells:
            queues.setdefault(cell.queue, Cell(cell.queue, "")).add(cell)
        key = (row.at, row.span, row.source)
        seen, known = self._rows.get(key, (row.at, {}))
        self._rows[key] = (now, queues)
        begin, end = max(row.at, seen), min(row.at + row.span, now)
        for name, cell in queues.items():
            before = known.get(name)
            added = _ended(cell) - (0 if before is None else _ended(before))
            if added > 0:
                self._spread(name, added, begin, max(begin, end))
        return True

    def _spread(self, queue: str, jobs: float, begin: float, end: float) -> None:
        """Add jobs evenly to the periods from `begin` to `end`."""
        first, last = floor(begin / PERIOD), floor(max(begin, end - 1e-6) / PERIOD)
        for number in range(first, last + 1):
            length = min(end, (number + 1) * PERIOD) - max(begin, number * PERIOD)
            share = length / (end - begin) if last > first else 1.0
            period = self._periods.setdefault(number, {})
            period[queue] = period.get(queue, 0.0) + jobs * share

    def activity(self, now: float) -> Activity:
        """The activity until now. Rows and periods that are too old are dropped."""
        self._read = now
        self._rows = {key: row for key, row in self._rows.items() if key[0] + key[1] > now - SPAN}
        first = floor(now / PERIOD) - PERIODS
        self._periods = {number: period for number, period in self._periods.items() if number >= first}
        full = floor((now - LATE) / MINUTE) * MINUTE - MINUTE
        minute: dict[str, Cell] = {}
        for (begin, span, _), (_, queues) in self._rows.items():
            if begin == full and span == MINUTE:
                for name, cell in queues.items():
                    minute.setdefault(name, Cell(name, "")).add(cell)
        names = {name for period in self._periods.values() for name in period}
        numbers = range(first, first + PERIODS)
        sparks = {
            name: tuple(round(self._periods.get(number, {}).get(name, 0.0), 2) for number in numbers) for name in names
        }
        return Activity(minute, sparks)


def _ended(cell: Cell) -> int:
    return cell.succeeded + cell.failed
