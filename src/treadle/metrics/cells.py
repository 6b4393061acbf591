"""Cells: the counts and times of one queue and task. And the bytes in which a row of metrics stores its cells.

The bytes are a version and packed MessagePack. A reader ignores data of a version that it does not know.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from treadle.core import defaults
from treadle.core.errors import UNREADABLE
from treadle.core.model import EXPIRED, Outcome, Record, State
from treadle.metrics.histogram import LARGEST, MOST, add, bucket_of
from treadle.metrics.pairs import Pairs

VERSION: Final = b"\x01"
LARGEST_DATA: Final = (
    4 * 1024 * 1024
)  # bytes of unpacked cells: packed data of a hostile worker must not fill the memory

LARGEST_ROW: Final = 1_001  # cells of a row: 500 tasks, then 500 queues, then all others, see `folding.TASKS`

Natural = Annotated[int, Meta(ge=0, le=MOST)]
Bucket = Annotated[int, Meta(ge=0, le=LARGEST)]  # the duration of a larger one is beyond any float
Name = Annotated[str, Meta(max_length=defaults.MAX_NAME)]


class Cell(Struct, array_like=True, gc=False):
    """One queue and task.

    succeeded, failed  jobs that ended so
    retried            attempts that failed and are tried again, and leases that expired
    other              runs that ended in any other way: deferred, released, cancelled, expired, or waiting for jobs
    run                a sample of the durations of runs
    wait               a sample of the times from the queue to the start, by the storage's clock
    """

    queue: Name
    task: Name
    succeeded: Natural = 0
    failed: Natural = 0
    retried: Natural = 0
    other: Natural = 0
    run: dict[Bucket, Natural] = {}
    wait: dict[Bucket, Natural] = {}

    def add(self, more: Cell) -> None:
        """Add the counts and samples of another cell."""
        self.succeeded = min(self.succeeded + more.succeeded, MOST)
        self.failed = min(self.failed + more.failed, MOST)
        self.retried = min(self.retried + more.retried, MOST)
        self.other = min(self.other + more.other, MOST)
        add(self.run, more.run)
        add(self.wait, more.wait)

    def copy(self) -> Cell:
        """A copy, even while another thread counts."""
        numbers = (self.queue, self.task, self.succeeded, self.failed, self.retried, self.other)
        return Cell(*numbers, self.run.copy(), self.wait.copy())

    def time(self, run: float | None, wait: float | None) -> None:
        """Add a run to the sample: how long it took, and how long its job was queued before, where that is known."""
        if run is not None:
            bucket = bucket_of(run)
            self.run[bucket] = self.run.get(bucket, 0) + 1
        if wait is not None:
            bucket = bucket_of(wait)
            self.wait[bucket] = self.wait.get(bucket, 0) + 1


def count(cell: Cell, record: Record, outcome: Outcome) -> None:
    """Count an outcome that the storage has applied to this claimed job."""
    state = outcome.state
    if state is State.SUCCEEDED:
        cell.succeeded += 1
    elif state is State.FAILED and outcome.reason != EXPIRED:
        cell.failed += 1
    elif state is State.READY and outcome.attempt > record.attempt:
        cell.retried += 1
    else:
        cell.other += 1


def waited(record: Record) -> float | None:
    """How long a claimed job was queued, in seconds by the storage's clock. Known for the first run only: later the job
    may have its old queue position again. If the job has a lane, its position is not a point in time."""
    job, started_at, queued_at = record.job, record.started_at, record.return_position
    if record.version != 1 or started_at is None or queued_at is None:
        return None
    if job.lane is not None:
        return None if job.after else started_at - record.created_at - job.delay
    return started_at - queued_at - job.aging * job.priority


class Cells:
    """Cells by queue and task, of a bounded number.

    most  tasks with a cell of their own; or the pairs that the cells are of, shared with other counts. See `Pairs`
    """

    def __init__(self, most: int | Pairs) -> None:
        self._pairs = Pairs(most) if isinstance(most, int) else most
        self.by_name: dict[tuple[str, str], Cell] = {}

    def of(self, queue: str, task: str) -> Cell:
        """The cell in which a job of this queue and task counts."""
        cell = self.by_name.get((queue, task))
        if cell is None:
            name = self._pairs.of(queue, task)
            cell = self.by_name.get(name)
            if cell is None:
                cell = self.by_name[name] = Cell(*name)
        return cell

    def add(self, cells: Iterable[Cell]) -> None:
        """Add each of these cells to the one in which its jobs count."""
        for cell in cells:
            self.of(cell.queue, cell.task).add(cell)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Annotated[list[Cell], Meta(max_length=LARGEST_ROW)]).decode


def encode(cells: Iterable[Cell]) -> bytes:
    """The bytes of these cells, about 1 KB for 20 of them."""
    return VERSION + zlib.compress(_encode(list(cells)), 1)


def decode(data: bytes) -> list[Cell] | None:
    """The cells; None if the data cannot be read, for example because a newer Treadle has written it."""
    if data[:1] != VERSION:
        return None
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(data[1:], LARGEST_DATA)
        return _decode(packed) if unpacking.eof else None
    except (zlib.error, *UNREADABLE):
        return None
