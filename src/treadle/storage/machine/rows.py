"""Defines what the state machine reads and writes: the rows of one call, and look-ups in their indexes.

A storage may hold written rows back until `sync`, but its look-ups must see them. Methods that take several ids, keys
or edges exist so that a storage can answer them with one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from treadle.core.limit_model import Limit
from treadle.core.model import NewJob, Record, State
from treadle.storage.admission import Asker, Usage
from treadle.storage.bounds import Bounds, Candidate

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A call in steps. At each `yield` the event loop may get a turn; the transaction stays open."""

Dependent: TypeAlias = tuple[str, int, bool, bool]
"""A job that waits, its version when the wait began, whether the ending is still to be counted, and `soft`: any ending
counts as success."""

STEP: Final = 64  # rows changed one by one between two turns of the loop: 1.5 ms on SQLite


class QueueEnds(Protocol):
    """The positions that decide where a job with a lane is queued. Both are of the queue and rank of `job`."""

    def lane_last(self, job: NewJob) -> float | None:
        """The last position in its lane."""

    def queue_head(self, job: NewJob) -> float | None:
        """The first position in its queue."""


class Inserts(QueueEnds, Protocol):
    """New rows on their way into the storage. Their edges to `after` are stored with them."""

    def add(self, row: Record, key: str | None) -> None:
        """Store a new row. `key`: the key that it holds from now on."""

    def flush(self) -> Iterable[None]:
        """The steps that write what was added; look-ups see it from then on."""


class Rows(QueueEnds, Protocol):
    """The rows of one call. Their `checkpoints` are empty: there may be thousands, and no decision needs them all."""

    now: float  # the moment of the call, by the storage's clock
    topics: set[str]  # topics to publish once the call is stored
    endings: list[tuple[str, State]]  # jobs that ended, whose dependents are not counted down yet
    ended: set[str]  # jobs that this call ended

    # --- rows

    def get(self, id: str) -> Record | None: ...

    def row(self, id: str) -> Record:
        """A row that exists."""

    def read(self, ids: Iterable[str]) -> None:
        """Load these rows with one read, because `get` will ask for them."""

    def put(self, row: Record) -> None: ...

    def sync(self) -> None:
        """Write what was put."""

    def whole(self, rows: Sequence[Record]) -> list[Record]:
        """The rows with their checkpoints, as the storage returns them."""

    def remember(self, id: str, checkpoints: Sequence[tuple[str, str]]) -> None:
        """Store these checkpoints of a row that was read under their names."""

    def forget_steps(self, id: str) -> None:
        """Delete the checkpoints of a job, except those whose name begins with `OURS`."""

    def remembers(self, id: str, checkpoints: Mapping[str, str]) -> bool:
        """Whether a job has all these checkpoints."""

    def stored(self, ids: Collection[str]) -> set[str]:
        """The ids that have a row."""

    def finals(self, ids: Collection[str]) -> set[str]:
        """The ids whose job has ended."""

    def inserts(self, fresh: Sequence[NewJob]) -> Inserts: ...

    # --- keys

    def holders(self, keys: Collection[str]) -> dict[str, str]:
        """The job that each key names, even if the key no longer counts."""

    def give_key(self, key: str, id: str | None) -> None:
        """Let this job hold the key, or none."""

    def drop_key(self, row: Record) -> None:
        """Free the key of this job, if the job holds it."""

    def behind(self, id: str) -> str | None:
        """The former holder of this job's key, if the job waits for that holder's ending."""

    def set_behind(self, id: str, first: str) -> None: ...

    # --- waiting

    def wait_for(self, edges: Sequence[tuple[str, str]], version: int, soft: bool = False) -> None:
        """Store open edges (up, down). `version` belongs to the jobs that wait."""

    def dependents(self, up: str) -> Sequence[Dependent]: ...

    def edge(self, up: str, down: str) -> Dependent | None: ...

    def set_edge(self, up: str, down: str, is_open: bool) -> None: ...

    def drop_edges(self, edges: Sequence[tuple[str, str]]) -> None: ...

    def unname(self, id: str) -> None:
        """The job begins another wait: `prune` need not keep the jobs that it named before."""

    def waiting_for(self, id: str, among: Collection[str]) -> set[str]:
        """Which of these wait for the job `id`, directly or through others, or are that job."""

    # --- queues and limits

    @property
    def bounds(self) -> Bounds:
        """The rules of bounded queues (`storage.bounds.bounds_of`)."""

    def waiting(self, queue: str) -> int:
        """How many jobs of a queue are ready, by the kept counts."""

    def outermost(self, queue: str, last: bool) -> Iterator[Candidate]:
        """The queued jobs of a queue by (position, id), of any rank; `last`: in queue order, the last one first. They
        are read one by one, and no row is changed meanwhile."""

    @property
    def rules(self) -> Mapping[str, Limit]: ...

    def used(self, key: str) -> Usage: ...

    def save_usage(self, key: str, usage: Usage) -> None:
        """Store the starts or tokens of a rate after a claim, or the tokens of a bucket after a settle."""

    def settle_start(self, key: str, at: float, reserved: int, spent: int) -> None:
        """Replace a part of the cost that is recorded for the starts of a moment (`admission.settled_start`). Nothing
        happens if none is recorded."""

    def queues_of(self, ids: Sequence[str]) -> list[str]:
        """The queues of the jobs that exist, in this order."""

    def any_queued(self, queue: str) -> bool: ...

    def blocked_limits(self) -> Sequence[str]:
        """The limits that block jobs."""

    def blocked_queues(self, key: str) -> Sequence[str]:
        """The queues in which this limit blocks jobs."""

    def blocked(self, key: str, queue: str, kept: bool) -> Iterable[Asker]:
        """The jobs of a queue that a limit blocks, in queue order: those that hold a slot of it, or the others."""

    def returned(self, key: str, queue: str) -> Sequence[Asker]:
        """The jobs of a queue that a limit blocked, and that are queued again and not claimed yet, in queue order."""

    def set_opening(self, key: str, moment: float | None) -> None:
        """Note when the rate of a limit admits the first job that it blocks; None: no rate blocks one."""


def finish(steps: Steps[T]) -> T:
    """Run all steps without a turn of the loop; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
