"""Reads what `treadle top` shows, at a cost that does not depend on how many jobs the storage has.

A look takes at most 2 % of the time: the pause after it is 50 times as long as the look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.failure_groups import FailureGroups
from treadle.admin.known_names import heard
from treadle.core.clock import monotonic, wall
from treadle.core.errors import TreadleError
from treadle.metrics import Metrics
from treadle.server.overview import Look, Overview, Recent, compose, counted
from treadle.storage import Risk, risks_of
from treadle.worker.leader import ID, leader_of

if TYPE_CHECKING:
    from treadle.app import App

SHARE: Final = 50  # times as long as a look takes: 2 % of the time
LONGEST: Final = 60.0  # s between two looks at most
TIMEOUT: Final = 10.0  # s of a look
GROUPED: Final = 500  # failed jobs that one look groups
RARE: Final = 30.0  # s after which failures and the last hour are read again, if nothing has changed
AT_ONCE: Final = 20  # rows of metrics between two turns of the loop: 4 ms


class Snapshot(Struct, frozen=True, kw_only=True):
    """The result of one look.

    failures  groups of the newest failed jobs
    hour      the last hour by minute; None: no metrics, or a token that may not read them
    """

    overview: Overview
    failures: FailureGroups = FailureGroups()
    hour: Metrics | None = None


class Outage(Struct, frozen=True):
    """The storage does not answer. began: wall time; reason: the last error as a sentence."""

    began: float
    reason: str


class Reader:
    """Looks at the storage of an app. It keeps the last snapshot, and the outage if there is one."""

    def __init__(self, app: App, every: float = 2.0, clock: Callable[[], float] = monotonic) -> None:
        self._app, self._every, self._clock = app, every, clock
        self._recent = Recent()
        self._rare_at: float | None = None
        self._risks: Sequence[Risk] = ()
        self._emptied: str | None = None
        self.snapshot: Snapshot | None = None
        self.outage: Outage | None = None
        self.cost = 0.0
        self.read_at: float | None = None  # by the clock: when `snapshot` was read

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return max(self._every, min(LONGEST, SHARE * self.cost))

    @property
    def age(self) -> float | None:
        """Seconds since `snapshot` was read."""
        return None if self.read_at is None else max(0.0, self._clock() - self.read_at)

    async def look(self, more: Callable[[], Awaitable[None]] | None = None) -> None:
        """Look once, with `more`. If the storage does not answer, set `outage` and keep the last snapshot."""
        began = self._clock()
        try:
            async with asyncio.timeout(TIMEOUT):
                with heard():  # warnings would be printed across the screen
                    self.snapshot = await self._read()
                    if more is not None:
                        await more()
        except (TreadleError, OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {TIMEOUT:.0f} s"
            self.outage = Outage(wall() if self.outage is None else self.outage.began, reason)
            self.cost = 0.0  # an outage is looked at with the usual pause, so that its end is seen soon
        else:
            self.outage = None
            self.read_at = self._clock()
            self.cost = self.read_at - began
            overview = replace(self.snapshot.overview, cost_ms=self.cost * 1000, every=self.pause)
            self.snapshot = replace(self.snapshot, overview=overview)

    async def overview(self) -> Overview:
        """The overview alone. Raises StorageError."""
        storage = self._app.storage
        glance = await storage.glance()
        counts = await counted(storage, glance)
        look = Look(glance=glance, cost=self.cost, every=self.pause, exact=counts.exact, counts=counts.counts)
        if storage.capabilities.queues:  # a token that is bound to queues cannot read the leader and metrics
            return compose(look)
        [row] = await storage.get([ID])
        for number, cells in enumerate(await storage.read_metrics(self._recent.since(glance.at), glance.at + 60.0), 1):
            self._recent.add(cells, glance.at)
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        activity = self._recent.activity(glance.at) if self._recent.has_any else None
        leader = None if row is None else leader_of(row)
        look = replace(look, leader=leader, activity=activity, emptied=self._emptied, risks=self._risks)
        return compose(look)

    async def _read(self) -> Snapshot:
        is_due = self._rare_at is None or self._clock() - self._rare_at >= RARE
        if is_due:
            self._risks = await risks_of(self._app.storage)
            if not self._app.storage.capabilities.queues:
                self._emptied = await self._app._core.emptied.look()
        overview, last = await self.overview(), self.snapshot
        if last is not None and not is_due and overview.totals.failed == last.overview.totals.failed:
            return Snapshot(overview=overview, failures=last.failures, hour=last.hour)
        failures = await self._failures(overview)
        hour = await self._hour() if last is None or is_due else last.hour
        if is_due:
            self._rare_at = self._clock()
        return Snapshot(overview=overview, failures=failures, hour=hour)

    async def _failures(self, overview: Overview) -> FailureGroups:
        """The groups of the newest failed jobs. A token that is bound to queues must name one in each query."""
        if not overview.totals.failed:
            return FailureGroups()
        bound = self._app.storage.capabilities.queues
        if not bound:
            return await self._app.dead.groups(scan=GROUPED)
        scan = max(1, GROUPED // len(bound))
        parts = [await self._app.dead.groups(scan=scan, queue=queue) for queue in sorted(bound)]
        groups = sorted((group for part in parts for group in part.groups), key=lambda group: -group.jobs)
        return FailureGroups(
            groups=groups,
            total=sum(part.total for part in parts),
            capped=any(part.capped for part in parts),
            scanned=sum(part.scanned for part in parts),
        )

    async def _hour(self) -> Metrics | None:
        if self._app.storage.capabilities.queues:
            return None
        metrics = await self._app.metrics.read(step=60)
        return None if metrics.since is None else metrics
