"""The rule of our own simulations that a due job starts soon.

A job is due when its delay, its retry, its sleep, its lost lease or its wait for other jobs is over. From then on a
worker has a reason not to claim it only while it claims other jobs or has no free slot, or while the job's queue or
limits are shut. No worker may be without a reason for long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

from treadle.core.limit_model import Limit
from treadle.core.model import Record, State
from treadle.testing.history import Entry
from treadle.testing.history.jobs import OWN
from treadle.testing.simulation import Fault, Simulation
from treadle.testing.simulation.fleet import MORNING

SOON = 1.5  # seconds: a poll after a lost notification, and the travel of some calls
BACK_OFF = 10.0  # seconds between two tries of a failed call, at most

Span = tuple[float, float]


class Due(NamedTuple):
    """A job that was due from `since` on, and was claimed or ended at `until`."""

    id: str
    since: float
    until: float


def due_jobs_start_soon(sim: Simulation) -> None:
    """No worker is idle for long while a job is due that it may run. Each fault makes that time longer by its own
    length, two leases and a back-off. Runs with steps of the clock are left out."""
    if any(fault.kind == "clock" for fault in sim.case.faults):
        return
    most, fleet = longest(sim.case.faults, sim._settings.lease), Fleet(sim)
    for id, since, until in fleet.due():
        shut = fleet.shut(id) if until - since > most else None
        for number, busy in enumerate(fleet.busy if shut is not None else ()):
            idle = gap(since, until, [*busy, *(shut or ())])
            assert idle <= most, f"worker-{number} was idle for {idle:g} s while {id} was due from {since:g} s on"


def longest(faults: Iterable[Fault], lease: float) -> float:
    """The seconds for which a worker may be idle although a job is due."""
    return SOON + sum(fault.seconds + 2 * lease + BACK_OFF for fault in faults)


def gap(since: float, until: float, spans: Iterable[Span]) -> float:
    """The longest time between these two that has no part of a span."""
    found, at = 0.0, since
    for begin, end in sorted(spans):
        found, at = max(found, min(begin, until) - at), max(at, end)
    return max(found, until - at)


class Fleet:
    """The entries and rows of one run, by job, by worker and by limit. All times are those of the loop."""

    def __init__(self, sim: Simulation) -> None:
        self.entries, self.end = sim.entries, sim._loop.now
        self.rows = {row.job.id: row for row in sim.rows}
        self.rules: dict[str, Limit] = sim.app.limits._declared
        self.workers, self.slots, self.lease = sim.case.workers, sim._settings.concurrency, sim._settings.lease
        # a task that needs labels or resources may have no room on an idle worker
        self.tasks = {name for name, task in sim.app._core.tasks.items() if task.needs is None}
        self.by_id: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.id:
                self.by_id[entry.id].append(entry)

    # --- when jobs were due

    def due(self) -> Iterator[Due]:
        """The periods in which a job waited for nothing but a worker and its limits. Reopened jobs are left out."""
        killed = {entry.actor: entry.at for entry in self.entries if entry.what == "crashed"}
        for id, row in self.rows.items():
            if row.job.task in self.tasks and not row.reopenings:
                claims = {entry.version: entry for entry in self.by_id[id] if entry.what == "claimed"}
                for version, since in self._moments(id, row, claims, killed):
                    until = claims[version].at if version in claims else self._ended(row)
                    yield Due(id, since, until)

    def _moments(
        self, id: str, row: Record, claims: dict[int, Entry], killed: dict[str, float]
    ) -> Iterator[tuple[int, float]]:
        """Each version that was to be claimed, and since when."""
        own = [up for up in row.after if up not in self.rows or self.rows[up].job.parent == id]
        released = self._all_ended({*row.job.after, *row.after}.difference(own))
        if released is not None:
            yield 1, max(row.created_at - MORNING + row.job.delay, released)
        if own and (resumed := self._resumed(id, own, claims)):
            yield resumed
        for entry in self.by_id[id]:
            if entry.what == "again":
                yield entry.version + 2, entry.at + entry.seconds  # the outcome has the version between them
        for version, claim in claims.items():
            died = killed.get(claim.name.rpartition("#")[0])
            if died is not None and version + 1 in claims:
                yield version + 1, max(claim.at, died) + self.lease

    def _resumed(self, id: str, own: Sequence[str], claims: dict[int, Entry]) -> tuple[int, float] | None:
        """The same for a job that waited for jobs that it had created, or for a signal."""
        rows = [self.rows.get(up) for up in own]
        ended = self._all_ended(own)
        # a job of which an upstream fails may be resumed before the others have ended
        if ended is None or not all(row and (row.state is State.SUCCEEDED or not row.job.task) for row in rows):
            return None
        at, version = min(
            ((claim.at, version) for version, claim in claims.items() if claim.at >= ended), default=(inf, 0)
        )
        runs = [entry.at for entry in self.by_id[id] if entry.what == "ended" and entry.at <= at]
        return version, max([ended, *runs])

    def _all_ended(self, ids: Iterable[str]) -> float | None:
        """When the last of these jobs ended; None: this is not known."""
        rows = [self.rows.get(id) for id in ids]
        if any(row is None or row.reopenings or row.ended_at is None for row in rows):
            return None
        return max((self._ended(row) for row in rows if row), default=0.0)

    def _ended(self, row: Record) -> float:
        return self.end if row.ended_at is None else row.ended_at - MORNING

    # --- why workers did not claim them

    @cached_property
    def busy(self) -> list[list[Span]]:
        """For each worker number, when it claimed a job of the program and when it had no free slot."""
        found: list[list[Span]] = [[] for _ in range(self.workers)]
        running: list[dict[tuple[str, str, int], float]] = [{} for _ in range(self.workers)]
        full: dict[int, float] = {}
        for entry in self.entries:
            actor = entry.name.rpartition("#")[0] if entry.what == "claimed" else entry.actor
            if not actor.startswith("worker-"):
                continue
            number = int(actor.removeprefix("worker-").partition(".")[0])
            _count(running[number], entry)
            if entry.what == "claimed" and not entry.id.startswith(OWN):
                found[number].append((entry.at, entry.at))
            if len(running[number]) >= self.slots:
                full.setdefault(number, entry.at)
            elif number in full:
                found[number].append((full.pop(number), entry.at))
        for number, since in full.items():
            found[number].append((since, inf))
        return found

    def shut(self, id: str) -> list[Span] | None:
        """When the queue or a limit of a job was shut, or admitted another job; None: this is not known."""
        row, found = self.rows[id], list[Span]()
        queue = f"queue:{row.job.queue}"
        rule = self.rules.get(queue)
        if queue in self._set or (rule is not None and (rule.slots is not None or rule.rate is not None)):
            return None
        found += self._paused(row.job.queue)
        for name, _ in row.job.limits if not row.function_done else ():
            spans = self._limited(name)
            if spans is None:
                return None
            found += spans
        return found

    @cached_property
    def _set(self) -> set[str]:
        """The limits for which operators set another rule."""
        return {entry.name for entry in self.entries if entry.facts.get("set")}

    def _paused(self, queue: str) -> Iterator[Span]:
        since, pauses = 0.0, 0
        for entry in self.entries:
            if entry.facts.get("pausing") == queue:
                since, pauses = since if pauses else entry.at, pauses + 1
            elif entry.facts.get("was_resumed") == queue:
                pauses -= 1
                if not pauses:
                    yield since, entry.at
        if pauses:
            yield since, inf

    def _limited(self, name: str) -> Iterable[Span] | None:
        """When a limit was used up, and when a job of it was claimed; None: it is of a kind that is not judged."""
        rule = self.rules.get(name.partition(":")[0])
        members = {id: dict(row.job.limits)[name] for id, row in self.rows.items() if name in dict(row.job.limits)}
        odd = any(cost != 1 or self.rows[id].reopenings for id, cost in members.items())
        if rule is None or rule.how == "bucket" or rule.hold == "ended" or odd or name.partition(":")[0] in self._set:
            return None
        starts = sorted(
            (each.at, id, each.version) for id in members for each in self.by_id[id] if each.what == "claimed"
        )
        found = [(at, at) for at, _, _ in starts]
        if rule.rate is not None:
            for (first, *_), (last, *_) in zip(starts, starts[rule.rate - 1 :], strict=False):
                found.append((last, first + rule.per))
        if rule.slots is not None:
            found += _used_up([(at, self._freed(id, version)) for at, id, version in starts], rule.slots)
        return found

    def _freed(self, id: str, version: int) -> float:
        """When a claim had certainly given back its slots."""
        later = (each for each in self.by_id[id] if each.version == version and each.what in ("settled", "again"))
        again = (each for each in self.by_id[id] if each.version > version and each.what == "claimed")
        ends = [each.at for part in (later, again) for each in part]
        ended = self.rows[id].ended_at
        return min([*ends, inf if ended is None else ended - MORNING])


def _count(runs: dict[tuple[str, str, int], float], entry: Entry) -> None:
    """Keep the runs that are in progress."""
    if entry.what == "began":
        runs[entry.actor, entry.id, entry.version] = entry.at
    elif entry.what == "ended":
        runs.pop((entry.actor, entry.id, entry.version), None)
    elif entry.what == "crashed":
        for each in [each for each in runs if each[0] == entry.actor]:
            del runs[each]


def _used_up(holds: Iterable[Span], slots: int) -> Iterator[Span]:
    """When as many slots were held as there are."""
    changes = sorted([(begin, 1) for begin, _ in holds] + [(end, -1) for _, end in holds])
    used, since = 0, 0.0
    for at, by in changes:
        if used < slots <= used + by:
            since = at
        elif used + by < slots <= used:
            yield since, at
        used += by
