"""The methods of the contract on dicts, one call after the other: the reference for every other storage.

Nothing survives the process. A call finishes before it awaits anything, so each is atomic; only a claim that passes
very many blocked jobs has several steps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from treadle.core import clock, defaults
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import (
    Claim,
    Claimed,
    HeartbeatResult,
    LeaseRenewal,
    NewJob,
    Outcome,
    Presence,
    Record,
    Settled,
    State,
)
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.storage import queries
from treadle.storage.admission import rate_use, rule_for, take_back
from treadle.storage.contract import Capabilities
from treadle.storage.limit_facts import folded
from treadle.storage.machine import store
from treadle.storage.machine.bounds import to_shed
from treadle.storage.machine.due import advance_row
from treadle.storage.machine.leasing import next_start
from treadle.storage.machine.limits import unblock_limit
from treadle.storage.machine.plan import plan
from treadle.storage.machine.rows import Steps, finish
from treadle.storage.machine.settle import renew, settle
from treadle.storage.memory import transfer
from treadle.storage.memory.claim import ClaimWalk
from treadle.storage.memory.recount import recount
from treadle.storage.memory.tables import Tables
from treadle.storage.row_rules import CLOCK_BACK, first_moment, in_order, kept_longer, taken_back, workflow_of
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import Chunk, MoveState, check_replaces, gone, refusal, shut
from treadle.storage.value_checks import check_ask, check_beat, check_changes, check_jobs, check_rows, odd_outcomes


class MemoryStorage:
    """Jobs in this process only; `now` reads the time (a test moves it by hand)."""

    capabilities = Capabilities(settle_claim=True, movable=True, marks=True, scan=defaults.SCAN_FAST)

    name = "this memory storage"  # names this storage in errors after a move
    checks: ClassVar[bool] = True  # check the arguments; the entries of a log were checked when they were written
    due_step: ClassVar[float] = defaults.DUE_STEP  # due rows that one call advances at most

    def __init__(self, now: clock.Clock = clock.wall) -> None:
        self._now = now
        self._waiters = TopicWaiters()
        self._tables = Tables()
        self._jobs = self._tables.jobs
        self._workers: dict[str, tuple[Presence, float]] = {}
        self._mark: MoveState | None = None
        self._metrics: dict[tuple[float, float, str], MetricsRow] = {}

    async def open(self, look: bool = False) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: the jobs exist as long as the object."""

    def _begin(self) -> float:
        """Begin a call. Return its time."""
        now = self._now()
        self._tables.begin(now)
        return now

    def _shut(self, *but: str) -> MoveState | None:
        """The mark of a move that stops a method; under the roles `but` the method works as always."""
        return shut(self._mark, *but)

    def _refuse(self, *but: str) -> None:
        if self._mark is not None and (mark := self._shut(*but)) is not None:
            raise refusal(mark, self.name)

    def _wake(self) -> None:
        topics = self._tables.topics
        if topics:
            self._waiters.wake(topics)
            topics.clear()

    # --- enqueue

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if self.checks:
            check_jobs(jobs)
        self._refuse()
        self._begin()
        rows = finish(store.enqueue(self._tables, jobs))
        self._wake()
        return rows

    def answers(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        """The row that `enqueue` would return for each job. Raises what `enqueue` would raise."""
        self._begin()
        planned = plan(self._tables, jobs)
        if self._tables.bounds:
            to_shed(self._tables, planned)
        return planned.answers

    def _advance_due(self) -> None:
        tables, now = self._tables, self._tables.now
        due, later = list[tuple[float, str]](), list[tuple[float, str]]()
        while tables.due and tables.due[0][0] <= now and len(due) < self.due_step:
            due_at, id = heapq.heappop(tables.due)
            row = self._jobs.get(id)
            if row is None or row.due_at != due_at or (due and due[-1] == (due_at, id)):
                continue
            is_leased = row.state is State.RUNNING and due_at == now
            (later if is_leased else due).append((due_at, id))
        for due_at, id in due:
            row = self._jobs.get(id)
            if row is not None and row.due_at == due_at:
                finish(advance_row(tables, row))
        for entry in later:
            heapq.heappush(tables.due, entry)
        for key, moment in list(tables.opens.items()):
            if moment <= now:
                unblock_limit(tables, key)

    # --- claim

    async def claim(self, ask: Claim) -> Claimed:
        if self.checks:
            check_ask(ask)
        return await self._claim_in_steps(ask)

    async def _claim_in_steps(self, ask: Claim) -> Claimed:
        while True:
            self._refuse("closing")
            if self._shut():
                return Claimed()
            claimed = self._claim(ask)
            if claimed is not None:
                return claimed
            await asyncio.sleep(0)  # the step blocked many jobs: other calls get a turn, then the next step runs

    def _claim(self, ask: Claim) -> Claimed | None:
        """One step of a claim. None: no job of this step may start, and there are more jobs to look at."""
        now = self._begin()
        taken = self._running(ask)
        if not taken:
            self._advance_due()
            taking = ClaimWalk(self._tables, ask)
            taking.run()
            taken = taking.taken
            if taking.unfinished and not taken:
                self._wake()
                return None
        self._wake()
        return self._claimed(taken, ask, now)

    def _running(self, ask: Claim) -> list[Record]:
        """The jobs that were claimed under this claim id before and still run."""
        held = self._tables.held.get(ask.worker)
        return in_order([self._jobs[id] for id in held], ask.queues) if held else []

    def _claimed(self, taken: list[Record], ask: Claim, now: float) -> Claimed:
        moment = first_moment(self._tables.next_moment(), next_start(self._tables, ask))
        return Claimed(tuple(self._tables.whole(taken)), None if moment is None else max(0.0, moment - now))

    # --- heartbeat

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        if self.checks:
            check_beat(worker, renewals, lease)
        self._refuse("closing", "gone")
        if self._shut("closing"):
            return HeartbeatResult(lost=frozenset(renewal.id for renewal in renewals))
        now, known = self._begin(), self._workers.get(worker.worker)
        # A new worker counts as seen at the latest time at which any worker was seen. A machine whose clock was
        # corrected has often been restarted.
        latest = known[1] if known is not None else max((seen for _, seen in self._workers.values()), default=now)
        if latest > now + CLOCK_BACK:
            self._take_back(now)
        self._workers[worker.worker] = worker, now
        if worker.gone:
            del self._workers[worker.worker]
        gone = frozenset(renewal.id for renewal in renewals if not renew(self._tables, renewal, lease))
        self._advance_due()
        self._wake()
        return HeartbeatResult(gone)

    def _take_back(self, now: float) -> None:
        """Repair the times that were written while the clock was ahead of `now`."""
        for name, (presence, seen) in self._workers.items():
            self._workers[name] = presence, min(seen, now)
        for usage in self._tables.rates.values():
            take_back(usage, now)
        for row in list(self._jobs.values()):
            taken = taken_back(row, now)
            if taken is not None:
                self._tables.put(taken)
        for key in [key for key, moment in self._tables.opens.items() if moment > now]:
            unblock_limit(self._tables, key)

    # --- settle

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        self._refuse("closing", "gone")
        mark = self._shut("closing")
        if mark is not None:
            return [gone(mark) for _ in outcomes]
        odd = odd_outcomes(outcomes) if self.checks else {}
        self._begin()
        settled = finish(self._settle_all(outcomes, odd))
        self._wake()
        return settled

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        if self.checks:
            check_ask(ask)
        if not outcomes:
            return [], await self._claim_in_steps(ask)
        settled = await self.settle(outcomes)
        return settled, Claimed() if self._shut() else await self._claim_in_steps(ask)

    def _settle_all(self, outcomes: Sequence[Outcome], odd: Mapping[int, Settled]) -> Steps[list[Settled]]:
        settled: list[Settled] = []
        for number, out in enumerate(outcomes):
            settled.append(odd.get(number) or (yield from settle(self._tables, out)))
        return settled

    # --- reading and operating

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        rows = {row.job.id: row for row in self._tables.whole([self._jobs[id] for id in ids if id in self._jobs])}
        return [rows.get(id) for id in ids]

    async def find(self, query: Query) -> Page:
        rows = list(self._jobs.values())
        if (label := query.label) is not None:
            rows = [row for row in rows if label in row.job.labels or row.job.id == query.ahead_of]
        page = queries.find(rows, query)
        complete = self._tables.whole if query.whole else self._tables.listed
        return replace(page, records=tuple(complete(page.records)))

    async def stats(self) -> Stats:
        now = self._now()
        workers = queries.workers(self._workers.values(), now)
        counts = queries.kept_counts(self._tables.kept, self._tables.heads(), now)
        return Stats(counts=counts, workers=workers, limits=await self.limits())

    async def glance(self, most: int = 10_000) -> Glance:
        now = self._now()
        glances = queries.kept_glances(self._tables.kept, self._tables.heads(), now)
        queues, capped = queries.merged_glances([(glances, ())], most)
        workers = queries.workers(self._workers.values(), now)
        return Glance(at=now, queues=queues, workers=workers, limits=await self.limits(), capped=capped)

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        return await recount(self._tables, repair)

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        if self.checks:
            check_rows(rows, remove)
        self._refuse("closing")
        for row in remove:
            self._metrics.pop((row.at, row.span, row.source), None)
        self._metrics.update(((row.at, row.span, row.source), row) for row in rows)

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        overlapping = [row for row in self._metrics.values() if row.at < until and row.at + row.span > since]
        return sorted(overlapping, key=lambda row: (row.at, row.span, row.source))

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        tables, now = self._tables, self._now()
        if not use:
            return queries.limit_uses(tables.facts)
        blocked_on = {key: sum(map(len, queues.values())) for key, queues in tables.aside.items()}
        used = {key: tables.used(key).used for key in list(tables.started)}
        rates = {
            key: (*rate_use(rule, usage, now), tables.opens.get(key))
            for key, usage in tables.rates.items()
            if (rule := rule_for(tables.rules, key)) is not None
        }
        return queries.limit_uses(tables.facts, used, blocked_on, rates)

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        if self.checks:
            check_changes(changes)
        self._refuse()
        self._begin()
        tables = self._tables
        fresh = folded(tables.facts, changes)
        for facts in fresh:
            tables.set_facts(facts)
        if fresh:
            transfer.open_again(tables)
            self._wake()

    async def prune(self, limit: int) -> int:
        if self._shut():
            return 0
        now = self._begin()
        self._advance_due()
        unfinished = [row for row in self._jobs.values() if not row.state.final]
        awaited = {up for row in unfinished for up in row.after}
        workflows = {row.job.root or row.job.id for row in unfinished}
        old = [
            (row.expires_at, row.job.id)
            for row in self._jobs.values()
            if row.expires_at is not None
            and row.expires_at <= now
            and row.job.id not in awaited
            and workflow_of(row) not in workflows
        ]
        longer, went = kept_longer(self._jobs.values(), now), 0
        for _, id in sorted(old):
            if went >= limit:
                break
            if id in longer:
                self._tables.put(replace(self._jobs[id], expires_at=longer[id]))
            else:
                self._tables.forget(self._jobs.pop(id))
                went += 1
        self._tables.drop_unused(now)
        self._wake()
        return went

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        return await self._waiters.wait(topics, timeout)

    # --- moves

    async def read_mark(self) -> MoveState | None:
        return self._mark

    async def set_mark(self, mark: MoveState) -> None:
        check_replaces(self._mark, mark, self.name)
        self._mark = mark
        if self._shut() is None:
            self._begin()
            transfer.open_again(self._tables)
            self._wake()

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        chunk = transfer.unload(self._tables, cursor, limit)
        return chunk if cursor is not None else replace(chunk, metrics=tuple(self._metrics.values()))

    async def load(self, load: Chunk, mark: MoveState) -> None:
        check_replaces(self._mark, mark, self.name)
        transfer.load(self._tables, load)
        self._metrics.update(((row.at, row.span, row.source), row) for row in load.metrics)
        self._mark = mark
