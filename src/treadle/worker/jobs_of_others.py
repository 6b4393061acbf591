"""Takes care of the jobs of another worker process of this fleet: renews their leases while that process is stuck, and
ends its leases when it has ended.

The supervisor knows that a process lives, and how it ended. The storage knows only leases, which a process without
Python's lock cannot renew, and which outlast a process that has ended. Any process of the fleet may do this for another
one, because the id and the version of a row are its lease.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from treadle.core import defaults
from treadle.core.claim_ids import worker_name
from treadle.core.model import HeartbeatResult, LeaseRenewal, Pairs, Presence, Record, State
from treadle.core.query_model import Query
from treadle.policy import attempts
from treadle.policy.guilt import stop_note
from treadle.storage import pages
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore

PAGE: Final = 500  # rows of one call
OVER: Final = 0.0  # s; the next call of any worker finds that such a lease has expired

Lease = tuple[str, int]  # the id of a job and its version


class Death(Struct, frozen=True, kw_only=True):
    """The end of a worker process.

    worker  the name of its worker
    how     such as "was killed by SIGKILL"
    at      seconds since 1970, by the clock of the supervisor
    asked   it stopped on request, so none of its jobs is to blame
    jobs    leases that it had, besides those under its name
    but     ids of jobs under its name that another process runs now
    """

    worker: str
    how: str
    at: float
    asked: bool = False
    jobs: list[Lease] = []
    but: list[str] = []


class Place(Struct, frozen=True):
    """A running job, and where the function of its task is defined: file, first line and name."""

    id: str
    task: str
    file: str = ""
    line: int = 0
    function: str = ""


class JobsOfOthers:
    """Acts for other workers in the storage of this one.

    beat   sends a heartbeat of this worker, with these renewals
    lease  of the workers of this fleet, in seconds
    """

    def __init__(
        self,
        storage: Storage,
        tasks: Mapping[str, TaskCore],
        beat: Callable[[Sequence[LeaseRenewal], float], Awaitable[HeartbeatResult]],
        lease: float,
    ) -> None:
        self._storage, self._tasks, self._beat, self._lease = storage, tasks, beat, lease

    async def end(self, death: Death) -> list[Place]:
        """Note this death in the jobs of the worker, let their leases expire, and list the worker no longer. Returns
        those jobs."""
        own = [row for row in await self._of(death.worker) if row.job.id not in death.but]
        others = await self._still(death.jobs)
        rows = list({row.job.id: row for row in (*own, *others)}.values())
        for first in range(0, len(rows), PAGE):
            renewals = [
                LeaseRenewal(row.job.id, row.version, () if is_system(row) else _noted(row, death))
                for row in rows[first : first + PAGE]
            ]
            await self._beat(renewals, OVER)
        gone = Presence(worker=death.worker, gone=True)
        await self._storage.heartbeat(gone, [], self._lease)  # it queues the jobs, too
        return [self._place(row) for row in rows if not is_system(row)]

    async def renew(self, worker: str, jobs: Collection[Lease]) -> list[Place]:
        """Renew the leases of this worker, and these. Returns its jobs. The leases of Treadle's own jobs are not
        renewed: a stuck leader must lose the lead."""
        rows = [row for row in (*await self._of(worker), *await self._still(jobs)) if not is_system(row)]
        by_lease: dict[float, list[LeaseRenewal]] = {}
        for row in rows:
            task = self._tasks.get(row.job.task)
            lease = row.job.lease or (None if task is None else task.lease) or self._lease
            by_lease.setdefault(lease, []).append(LeaseRenewal(row.job.id, row.version))
        for lease, renewals in by_lease.items():
            await self._beat(renewals, lease)
        return [self._place(row) for row in rows]

    async def _of(self, worker: str) -> list[Record]:
        """The running jobs of this worker."""
        every = pages(self._storage, Query(state=(State.RUNNING,), order="started", limit=PAGE))
        return [row async for page in every for row in page.records if worker_name(row.worker) == worker]

    async def _still(self, jobs: Collection[Lease]) -> list[Record]:
        """The rows of these leases that are held still."""
        rows = await self._storage.get([id for id, _ in jobs]) if jobs else ()
        return [
            row
            for row, (_, version) in zip(rows, jobs, strict=True)
            if row is not None and row.version == version and row.state is State.RUNNING
        ]

    def _place(self, row: Record) -> Place:
        task = self._tasks.get(row.job.task)
        function: Any = None if task is None else inspect.unwrap(task.function)
        code = getattr(function, "__code__", None)
        if code is None:
            return Place(row.job.id, row.job.task)
        return Place(row.job.id, row.job.task, code.co_filename, code.co_firstlineno, code.co_name)


def is_system(row: Record) -> bool:
    """Whether the job is one of Treadle's own."""
    return row.job.queue == defaults.SYSTEM_QUEUE


def _noted(row: Record, death: Death) -> Pairs:
    if death.asked:
        return stop_note(row)
    note = attempts.Death(row.lost, death.worker, death.how, death.at)
    return ((attempts.DEATH, msgspec.json.encode(note).decode()),)


def named(places: Iterable[Place], most: int = 5) -> str:
    """These jobs in a line of a log."""
    listed: Sequence[Place] = list(places)
    text = ", ".join(f"{place.task} {place.id}" for place in listed[:most])
    return text if len(listed) <= most else f"{text} and {len(listed) - most} more"
