"""The verbs of the contract, over anything that runs our statements: our own connections, or a user's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.core.errors import StorageError
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.storage.postgres import metrics, pages, queries
from treadle.storage.postgres.claim import Nobody, Watch, claim
from treadle.storage.postgres.enqueue import enqueue
from treadle.storage.postgres.errors import mark_of
from treadle.storage.postgres.maintenance import Pruner, set_limits
from treadle.storage.postgres.settle import heartbeat, settle, settle_claim
from treadle.storage.postgres.topics import Caller
from treadle.storage.transfer import gone
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    check_rows,
    guarded_settle,
    guarded_settle_claim,
)


class Verbs:
    """The verbs of the contract. `now` reads a test's clock; None: the server's own."""

    def __init__(self, runner: Caller, now: Callable[[], float] | None, watch: Watch | None = None) -> None:
        self._runner, self._clock, self._watch = runner, now, watch or Nobody()
        self._pruner = Pruner(runner)

    def _moment(self) -> float | None:
        return None if self._clock is None else self._clock()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        check_jobs(jobs)
        return await enqueue(self._runner, jobs, self._moment()) if jobs else []

    async def claim(self, ask: Claim) -> Claimed:
        check_ask(ask)
        try:
            return await claim(self._runner, ask, self._moment(), self._watch)
        except StorageError as error:
            if _role(error) != "closing":
                raise
            return Claimed()

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        check_beat(worker, renewals, lease)
        try:
            return await heartbeat(self._runner, worker, renewals, lease, self._moment())
        except StorageError as error:
            if _role(error) != "gone":
                raise
            return HeartbeatResult(lost=frozenset(renewal.id for renewal in renewals))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        try:
            return await settle(self._runner, outcomes, self._moment()) if outcomes else []
        except StorageError as error:
            mark = mark_of(error)
            if mark is None or mark.role != "gone":
                raise
            return [gone(mark) for _ in outcomes]

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Both in one transaction, or, if another call has the turn of those that count limits, in two."""
        if not outcomes:
            return [], await self.claim(ask)
        try:
            return await settle_claim(self._runner, outcomes, ask, self._moment(), self._watch)
        except StorageError as error:
            if _role(error) not in ("closing", "gone"):
                raise
            return await self.settle(outcomes), Claimed()

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        by_id = await queries.by_ids(self._runner, ids) if ids else {}
        return [by_id.get(id) for id in ids]

    async def find(self, query: Query) -> Page:
        return await pages.find(self._runner, query)

    async def stats(self) -> Stats:
        return await queries.stats(self._runner, self._moment())

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        return await queries.recount(self._runner, repair)

    async def glance(self, most: int = 10_000) -> Glance:
        return await queries.glance(self._runner, self._moment(), max(most, 0))

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await queries.limits(self._runner, self._moment(), use)

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        await set_limits(self._runner, changes, self._moment())

    async def prune(self, limit: int) -> int:
        try:
            return await self._pruner.prune(max(limit, 0), self._moment())
        except StorageError as error:
            if _role(error) is None:
                raise
            return 0

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        check_rows(rows, remove)
        await metrics.store_metrics(self._runner, rows, remove)

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        return await metrics.read_metrics(self._runner, since, until)


def _role(error: StorageError) -> str | None:
    """The role of the mark that forbade a verb; None: another error."""
    mark = mark_of(error)
    return None if mark is None else mark.role
