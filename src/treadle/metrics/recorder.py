"""The recorder of one source, a worker or a server: the cells of the current minute, and the rows to store.

A row has the whole current minute, so storing it again replaces it, and a repeated call changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from treadle.core.query_model import MetricsRow
from treadle.metrics.cells import Cell, Cells, encode
from treadle.metrics.process_counts import NAMED, ProcessCounts

MINUTE: Final = 60.0  # s
TASKS: Final = 50  # tasks with a cell of their own in a row: bounds it to some KB
PENDING: Final = 60  # minutes that are kept while the storage is away. Rows are folded when they are two hours old.


class Recorder:
    """Counts in cells by minute.

    source  which no other recorder has, also not one that was started under the same name later
    now     the clock of this process; `synchronize` corrects it to the storage's
    counts  the counts of this process, which outlive the recorder. None: nothing reads them
    """

    def __init__(self, source: str, now: Callable[[], float], counts: ProcessCounts | None = None) -> None:
        self._source, self._now, self._ahead, self._counts = source, now, 0.0, counts
        self._minute, self._cells = int(now() // MINUTE), Cells(NAMED)
        if counts is not None:
            counts.follow(self.cells)
        self.changed = False  # a cell may have changed since the last `take`
        self._pending: dict[float, MetricsRow] = {}

    def synchronize(self, moment: float) -> None:
        """The storage's clock shows `moment` now."""
        self._ahead = moment - self._now()

    def cell(self, queue: str, task: str) -> Cell:
        """The cell in which a job of this queue and task counts now. It is valid until the next call of `begin`."""
        self.changed = True
        return self._cells.of(queue, task)

    def begin(self) -> bool:
        """Begin a new minute if the last one is over. Returns whether it was: the cells of before count no more."""
        minute = int((self._now() + self._ahead) // MINUTE)
        if self._minute - PENDING <= minute <= self._minute:
            # Also if the clock goes back: a row of a minute that was stored must not be replaced by an empty one.
            return False
        if self.changed:
            row = self._row()
            self._pending[row.at] = row
            while len(self._pending) > PENDING:
                del self._pending[next(iter(self._pending))]
        self._minute, self.changed = minute, False
        if self._counts is None:
            self._forget()
        else:
            self._counts.minute_ended(self._cells.by_name.values(), self._forget)
        return True

    def _forget(self) -> None:
        self._cells = Cells(NAMED)

    def cells(self) -> list[Cell]:
        """Copies of the cells of the current minute. May be called in any thread."""
        return [cell.copy() for cell in self._cells.by_name.copy().values()]

    def end(self) -> None:
        """Add the cells to the counts of the process. The recorder counts nothing from here on."""
        if self._counts is not None:
            self._counts.leave(self.cells)
            self._counts = None

    def take(self) -> list[MetricsRow]:
        """The rows to store: those of ended minutes, and the one of the current minute if it has changed. If they
        cannot be stored, call `put_back`."""
        self.begin()
        rows = list(self._pending.values())
        self._pending.clear()
        if self.changed:
            rows.append(self._row())
            self.changed = False
        return rows

    def put_back(self, rows: list[MetricsRow]) -> None:
        """Store these rows with the next ones, unless there are newer ones of their minutes."""
        newer, self._pending = self._pending, {}
        for row in rows:
            if row.at == self._minute * MINUTE:
                self.changed = True
            else:
                self._pending[row.at] = row
        self._pending |= newer

    def _row(self) -> MetricsRow:
        cells = self._cells.by_name
        if len(cells) > TASKS:
            named = Cells(TASKS)
            named.add(cells.values())
            cells = named.by_name
        data = encode(cells.values())
        return MetricsRow(at=self._minute * MINUTE, span=MINUTE, source=self._source, data=data)
