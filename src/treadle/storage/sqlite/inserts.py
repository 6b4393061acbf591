"""Inserts new rows: many in one statement, with their labels and edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from treadle.core.model import NewJob, Record, State
from treadle.storage.count_groups import letter_of
from treadle.storage.machine.rows import QueueEnds, Steps
from treadle.storage.row_rules import rank
from treadle.storage.sqlite.counts import Changes
from treadle.storage.sqlite.rows import DOWN, MORE, encode, flags_of, inserted, text
from treadle.storage.sqlite.statements import load

SQL = load("enqueue")
STEP: Final = 256  # edges between two turns of the loop: 1 to 2 ms

Execute = Callable[..., Any]
Lane = tuple[str, int, str]  # queue, rank, lane


class Unit(QueueEnds, Protocol):
    """The part of a unit of work that inserts use."""

    ex: Execute
    many: Execute
    topics: set[str]
    counts: Changes

    def add(self, row: Record, seq: int, flags: int) -> None: ...

    def wait_for(self, edges: Sequence[tuple[str, str]], version: int, soft: bool = False) -> None: ...


class BulkInsert:
    """An INSERT of many rows in one statement: 334,000 rows/s against 262,000 with executemany.

    Its text ends with the VALUES of one row, which is repeated. There are few sizes, so that each stays prepared.
    """

    SIZES = (256, 64, 16, 4, 1)

    def __init__(self, statement: str, width: int) -> None:
        """`width`: the parameters of each row."""
        head, row = statement.split(" VALUES ")
        self._texts = {size: f"{head} VALUES {','.join([row] * size)}" for size in self.SIZES}
        self._width = width

    def insert(self, ex: Execute, params: list[Any], first: tuple[Any, ...] = ()) -> int:
        """Insert all rows with few statements; return how many were inserted. `first`: parameters before those of the
        rows."""
        start, rest, done = 0, len(params) // self._width, 0
        if rest == 1:
            one: int = ex(self._texts[1], (*first, *params)).rowcount
            return one
        for size in self.SIZES:
            while rest >= size:
                end = start + size * self._width
                done += ex(self._texts[size], (*first, *params[start:end])).rowcount
                start, rest = end, rest - size
        return done


ADD_ANY, ADD_BODY = BulkInsert(SQL["add_any"], 23), BulkInsert(SQL["add_body"], 2)


def waited_for(ex: Execute, jobs: Sequence[NewJob]) -> set[str]:
    """The jobs that stored jobs wait for already."""
    return {up for (up,) in ex(SQL["waited_for"], (text([job.id for job in jobs]),))}


class Batch:
    """Collects rows to insert together. Before `flush`, only the positions below may be looked up."""

    def __init__(self, unit: Unit, jobs: Sequence[NewJob]) -> None:
        self._unit = unit
        self._top = unit.ex(SQL["top"]).fetchone()[0]
        self._rows: list[Any] = []
        self._bodies: list[Any] = []
        self._kinds: list[tuple[str, str, str]] = []  # what each row is counted as
        self._labels: list[tuple[str, int]] = []
        self._edges: list[tuple[str, str]] = []
        self._heads: dict[tuple[str, int], float | None] = {}  # queue, rank -> the stored first position
        self._firsts: dict[tuple[str, int], float] = {}  # the first position among the rows here
        self._lanes: dict[Lane, float | None] = {}
        self._waited = {up for new in jobs for up in new.after}
        if unit.ex(SQL["any_edge"]).fetchone()[0]:
            self._waited |= waited_for(unit.ex, jobs)

    def add(self, row: Record, key: str | None) -> None:
        job = row.job
        self._top += 1
        flags = flags_of(job) | (DOWN if job.id in self._waited else 0)
        if row.function_done or row.after or row.failures_allowed != 0 or row.deadline_at is not None or row.pending:
            flags |= MORE
        self._rows += inserted(row, self._top, flags, key)
        self._kinds.append((job.queue, job.task, letter_of(row)))
        self._bodies += (self._top, bytearray(encode(job)))
        self._labels += [(label, self._top) for label in job.labels]
        self._edges += [(up, job.id) for up in dict.fromkeys(row.after)]
        self._unit.add(row, self._top, flags)
        if row.state is not State.WAITING:
            self._unit.topics.add(f"queue:{job.queue}")
        if row.queue_position is not None:
            self._queued(job, row.queue_position)

    def _queued(self, job: NewJob, position: float) -> None:
        queue = job.queue, rank(job)
        self._firsts[queue] = min(position, self._firsts.get(queue, position))
        if job.lane is not None:
            last = self._lanes.get((*queue, job.lane))
            self._lanes[*queue, job.lane] = position if last is None else max(position, last)

    def lane_last(self, job: NewJob) -> float | None:
        """The last position in its lane, stored or among the rows here."""
        lane = job.queue, rank(job), job.lane or ""
        if lane not in self._lanes:
            self._lanes[lane] = self._unit.lane_last(job)
        return self._lanes[lane]

    def queue_head(self, job: NewJob) -> float | None:
        """The first position in its queue, stored or among the rows here."""
        queue = job.queue, rank(job)
        if queue not in self._heads:
            self._heads[queue] = self._unit.queue_head(job)
        head, first = self._heads[queue], self._firsts.get(queue)
        return first if head is None else head if first is None else min(head, first)

    def flush(self) -> Steps[None]:
        """Insert all rows. One job may wait for thousands of others, so edges are stored in steps."""
        unit = self._unit
        ADD_ANY.insert(unit.ex, self._rows)
        ADD_BODY.insert(unit.ex, self._bodies)
        for kind in self._kinds:
            unit.counts.add(*kind, 1)
        if self._labels:
            unit.many(SQL["add_label"], self._labels)
        for start in range(0, len(self._edges), STEP):
            if start:
                yield
            unit.wait_for(self._edges[start : start + STEP], 0)
        for batch in (self._rows, self._bodies, self._kinds, self._labels, self._edges):
            batch.clear()
        self._heads.clear()
        self._firsts.clear()
        self._lanes.clear()
