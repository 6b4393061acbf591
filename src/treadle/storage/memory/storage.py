"""The verbs, one after the other, as the contract words them.

Without it the contract would have no reference: the property test holds every other storage to these answers.
Nothing survives the process. No step awaits before it is done, so each is atomic by construction; a claim that passes
very many blocked jobs is several.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from treadle.core import clock
from treadle.core.model import (
    APPLIED,
    ASKED,
    EXPIRED,
    SUPERSEDED,
    Claim,
    Claimed,
    HeartbeatResult,
    LeaseRenewal,
    LimitChange,
    LimitFacts,
    LimitUse,
    NewJob,
    Outcome,
    Page,
    Presence,
    Query,
    Record,
    Settled,
    State,
    Stats,
)
from treadle.errors import KeyHeld, UnknownUpstream
from treadle.storage import queries
from treadle.storage.admission import may_go_on, opens_at, rate_use, rule_for, take_back
from treadle.storage.contract import Capabilities
from treadle.storage.limit_facts import changed, named
from treadle.storage.memory import transfer
from treadle.storage.memory.claim import ClaimWalk
from treadle.storage.memory.endings import READY, RUNNING, WAITING, Edge, Endings
from treadle.storage.memory.reopen import after_the_end
from treadle.storage.memory.tables import Tables, spot_of
from treadle.storage.row_rules import (
    CLOCK_BACK,
    REFUSALS,
    awaited,
    check_reach,
    first_moment,
    lost,
    may_wait,
    named_by,
    named_outside,
    needed,
    refuse_circle,
    refuse_holder,
    refuse_taken,
    repeats,
    taken_back,
    tolerated,
    within,
)
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import SHUT, Chunk, MoveState, check_replaces, gone, refusal
from treadle.storage.value_checks import check_ask, check_beat, check_changes, check_jobs, odd_outcomes


class MemoryStorage:
    """Jobs in this process only; `now` reads the time (a test moves it by hand)."""

    capabilities = Capabilities(settle_claim=True, movable=True, marks=True)

    name = "this memory storage"  # in what it says where its jobs have left
    checks: ClassVar[bool] = True  # what it is given; what a log replays was checked when it was written

    def __init__(self, now: clock.Clock = clock.wall) -> None:
        self._now = now
        self._waiters = TopicWaiters()
        self._tables = Tables()
        self._jobs = self._tables.jobs
        self._ends = Endings(self._tables)
        self._workers: dict[str, tuple[Presence, float]] = {}
        self._mark: MoveState | None = None

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """The jobs stay for as long as the object does."""

    def _shut(self, *but: str) -> MoveState | None:
        """The mark of a move that keeps a verb from doing what it always does; but under these roles it does."""
        mark = self._mark
        return mark if mark is not None and mark.role in SHUT and mark.role not in but else None

    def _refuse(self, *but: str) -> None:
        mark = self._shut(*but)
        if mark is not None:
            raise refusal(mark, self.name)

    def _speak(self) -> None:
        self._waiters.speak(self._tables.topics)
        self._tables.topics.clear()

    # --- enqueue

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if self.checks:
            check_jobs(jobs)
        self._refuse()
        now = self._now()
        answers = self._answers(jobs, now)
        self._store_all(jobs, answers, now)
        self._speak()
        return [self._jobs[answers[new.id]] for new in jobs]

    def _answers(self, jobs: Sequence[NewJob], now: float, leaving: str = "") -> dict[str, str]:
        """Which row answers each job; raises before anything is stored. `leaving` gives its key up meanwhile."""
        refuse_taken(jobs, lambda ids: {id: self._jobs[id].job for id in ids if id in self._jobs})
        answers: dict[str, str] = {}
        taken: dict[str, NewJob] = {}
        for new in jobs:
            if new.id in self._jobs or new.id in answers:
                answers.setdefault(new.id, new.id)
                continue
            if new.key is not None:
                holder = taken[new.key].id if new.key in taken else self._ends.holder(new.key, now, leaving)
                if holder is not None:
                    refuse_holder(new, taken.get(new.key) or self._jobs[holder].job)
                if holder is not None and new.key_conflict == "raise":
                    raise KeyHeld(new.key, holder)
                ended = holder in self._jobs and self._jobs[holder].state.final
                if holder is not None and (new.key_conflict == "keep" or ended):
                    answers[new.id] = holder
                    continue
                taken[new.key] = new
            answers[new.id] = new.id
        found = {job.id: job for job in reversed(jobs)} if any(new.reach for new in jobs) else {}
        for new in jobs:
            if answers[new.id] != new.id or new.id in self._jobs:
                continue
            if new.reach:
                found |= {job.id: job for job in self._jobs_of(new)}
                check_reach(new, found.get)
            for up in new.after if new.wait_timeout is None else ():
                if up not in self._jobs and up not in answers:
                    raise UnknownUpstream(up, new.id)
        return answers

    def _jobs_of(self, new: NewJob) -> list[NewJob]:
        """The stored jobs that this one names."""
        return [self._jobs[id].job for id in named_by(new) if id in self._jobs]

    def _store_all(self, jobs: Sequence[NewJob], answers: dict[str, str], now: float, parent: str = "") -> None:
        """Store what is new; `parent` is the unfinished job they come from."""
        fresh = [new for new in jobs if answers[new.id] == new.id and new.id not in self._jobs]
        born: set[str] = set()
        for new in fresh:
            if new.id not in born:
                born.add(new.id)
                self._store(new, answers, now, parent)

    def _store(self, new: NewJob, answers: dict[str, str], now: float, parent: str) -> None:
        after = tuple(answers.get(up, up) for up in new.after)
        soft = self._ends.take_key(new, now, parent) if new.key is not None else None
        if soft in after:
            soft = None  # it waits for the holder by name, and with what it asked of that ending
        if (
            new.task
            and not (after or soft or new.required or new.delay or new.function_done)
            and new.wait_timeout is None
        ):
            self._store_ready(new, now)
            return
        deadline_at = None if new.deadline is None else now + new.deadline
        timeout_at = None if new.wait_timeout is None else now + new.wait_timeout
        self._tables.put(
            Record(
                job=new,
                version=0,
                state=WAITING,
                after=after,
                pending=needed(new.required, after) + (soft is not None),
                failures_allowed=tolerated(new.failures_allowed, new.required, after),
                function_done=new.function_done,
                deadline_at=deadline_at,
                created_at=now,
                updated_at=now,
                due_at=first_moment(deadline_at if not new.function_done else None, timeout_at),
            )
        )
        if soft is not None:
            self._ends.down[soft][new.id] = Edge(0, soft=True)
        self._ends.watch_ups(new.id, after, now)

    def _store_ready(self, new: NewJob, now: float) -> None:
        """A job that has nothing to wait for, in one step: half the time of a call that brings thousands."""
        self._ends.count_endings(now)
        position = self._tables.position(new, now)
        deadline_at = None if new.deadline is None else now + new.deadline
        self._tables.put(
            Record(
                job=new,
                version=0,
                state=READY,
                failures_allowed=tolerated(new.failures_allowed, new.required, ()),
                queue_position=position,
                return_position=position,
                due_at=deadline_at,
                deadline_at=deadline_at,
                created_at=now,
                updated_at=now,
            )
        )

    # --- from waiting into line, and what is due

    def _advance_due(self, now: float) -> None:
        tables, due = self._tables, []
        while tables.due and tables.due[0][0] <= now:
            due.append(heapq.heappop(tables.due))
        for at, id in due:
            row = self._jobs.get(id)
            if row is None or row.due_at != at:
                continue
            if row.state is RUNNING and not at < now:
                heapq.heappush(tables.due, (at, id))
            else:
                self._act(row, now)
        for key, moment in list(tables.opens.items()):
            if moment <= now:
                tables.call_in_for(key, now)

    def _act(self, row: Record, now: float) -> None:
        """The moment of this row has come."""
        if row.deadline_at is not None and row.deadline_at <= now and not row.function_done:
            self._ends.end(row, State.FAILED, now, EXPIRED, "its deadline passed")
        elif row.state is RUNNING:
            self._tables.join(lost(row, now), now)
            self._tables.unblock(row, now)
        elif row.state is READY:
            self._tables.join(row, row.due_at or now)
        elif row.started_at is None and not row.function_done:
            # prose: ok, a stored text, the same in every storage
            self._ends.end(row, State.FAILED, now, EXPIRED, "what it waited for did not come in time")
        elif row.job.task:
            self._tables.join(row, now)
        else:  # a promise that ran: nobody acts on it, so it is due no more
            self._tables.put(replace(row, due_at=None if row.function_done else row.deadline_at))
        self._ends.count_endings(now)

    # --- claim

    async def claim(self, ask: Claim) -> Claimed:
        if self.checks:
            check_ask(ask)
        while True:
            self._refuse("closing")
            if self._shut():
                return Claimed()
            claimed = self._claim(ask)
            if claimed is not None:
                return claimed
            await asyncio.sleep(0)  # many have stepped aside: somebody else's turn, then the next step

    def _claim(self, ask: Claim) -> Claimed | None:
        """One step of a claim. None: it met nobody who may start yet, and there is more to look at."""
        now = self._now()
        taken = self._running(ask)
        if not taken:
            self._advance_due(now)
            taking = ClaimWalk(self._tables, self._ends, ask, now)
            taking.run()
            taken = taking.taken
            if taking.unfinished and not taken:
                self._speak()
                return None
        self._speak()
        return self._claimed(taken, ask, now)

    def _running(self, ask: Claim) -> list[Record]:
        """What was claimed under this claim id before and still runs."""
        taken = [self._jobs[id] for id in self._tables.held.get(ask.worker, ())]
        order = {queue: -n for n, (queue, _) in enumerate(reversed(ask.queues))}
        taken.sort(key=lambda row: (order.get(row.job.queue, 1), spot_of(row)))
        return taken

    def _claimed(self, taken: list[Record], ask: Claim, now: float) -> Claimed:
        moment = first_moment(self._tables.next_moment(), self._next_of_queues(ask, now))
        return Claimed(tuple(taken), None if moment is None else max(0.0, moment - now))

    def _next_of_queues(self, ask: Claim, now: float) -> float | None:
        """When a rate of its own lets the next of a line asked for start."""
        tables, queues = self._tables, {queue for queue, _ in ask.queues}
        if ask.ids:
            queues = {self._jobs[id].job.queue for id in ask.ids if id in self._jobs}
            queues = {queue for queue in queues if within(ask.reach, queue)}
        found = []
        for queue in queues:
            rule = rule_for(tables.rules, f"queue:{queue}") if tables.line[queue] else None
            if rule is not None:
                found.append(opens_at(rule, tables.used(f"queue:{queue}"), 1, now))
        return first_moment(*found)

    # --- heartbeat

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        if self.checks:
            check_beat(worker, renewals, lease)
        self._refuse("closing", "gone")
        if self._shut("closing"):
            return HeartbeatResult(lost=frozenset(renewal.id for renewal in renewals))
        now, known = self._now(), self._workers.get(worker.worker)
        # a worker that is new looks at the others: a machine whose clock is set right is often started anew
        latest = known[1] if known is not None else max((seen for _, seen in self._workers.values()), default=now)
        if latest > now + CLOCK_BACK:
            self._take_back(now)
        self._workers[worker.worker] = worker, now
        if worker.gone:
            del self._workers[worker.worker]
        gone = frozenset(renewal.id for renewal in renewals if not self._beat(renewal, lease, now))
        self._advance_due(now)
        self._speak()
        return HeartbeatResult(gone)

    def _take_back(self, now: float) -> None:
        """The clock was ahead of `now`, and is not any more."""
        for name, (presence, seen) in self._workers.items():
            self._workers[name] = presence, min(seen, now)
        for usage in self._tables.rates.values():
            take_back(usage, now)
        for row in list(self._jobs.values()):
            taken = taken_back(row, now)
            if taken is not None:
                self._tables.put(taken)
        for key in [key for key, moment in self._tables.opens.items() if moment > now]:
            self._tables.call_in_for(key, now)

    def _beat(self, renewal: LeaseRenewal, lease: float, now: float) -> bool:
        row, tables = self._jobs.get(renewal.id), self._tables
        if not may_go_on(row, renewal, tables):
            return False
        checkpoints = (
            tuple({**dict(row.checkpoints), **dict(renewal.checkpoints)}.items())
            if renewal.checkpoints
            else row.checkpoints
        )
        note = renewal.note if renewal.note is not None else row.note
        if note != row.note:
            tables.topics.add(f"job:{row.job.id}")
        due = now + (row.job.lease or lease)
        tables.put(
            replace(
                row,
                state=RUNNING,
                queue_position=None,
                blocked_on=None,
                due_at=due,
                checkpoints=checkpoints,
                note=note,
                updated_at=now,
            )
        )
        return True

    # --- settle

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        self._refuse("closing", "gone")
        mark = self._shut("closing")
        if mark is not None:
            return [gone(mark) for _ in outcomes]
        now, odd = self._now(), odd_outcomes(outcomes) if self.checks else {}
        settled = [odd.get(number) or self._settle(out, now) for number, out in enumerate(outcomes)]
        self._speak()
        return settled

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        if self.checks:
            check_ask(ask)
        settled = await self.settle(outcomes)
        return settled, Claimed() if outcomes and self._shut() else await self.claim(ask)

    def _settle(self, out: Outcome, now: float) -> Settled:
        row = self._jobs.get(out.id)
        if row is None or not within(out.reach, row.job.queue):
            return Settled("stale", "there is no such job")
        if repeats(out, row):
            return APPLIED
        if row.version != out.version:
            return Settled("stale", f"it is {row.state} at version {row.version}")
        if row.state.final:
            return after_the_end(self._ends, row, out, now)
        try:
            answers = self._answers(out.followups, now, leaving=out.id if out.state.final else "")
            for up in out.after:
                above = self._jobs.get(up)
                if up not in answers and (above is None or not may_wait(out, row, above.job)):
                    raise UnknownUpstream(up, out.id)
            circle = self._circle(out, answers)
        except REFUSALS as error:
            return Settled("refused", str(error))
        if row.state is RUNNING and row.worker is not None and out.reason in (ASKED, SUPERSEDED):
            self._tables.topics.add(f"worker:{row.worker.rpartition('#')[0] or row.worker}")
        self._apply(row, out, answers, circle, now)
        self._ends.count_endings(now)
        return APPLIED

    def _circle(self, out: Outcome, answers: dict[str, str]) -> set[str]:
        """Of the rows that answer jobs of this outcome, or that its jobs name, those that wait for its job, directly or
        through others; or are that job."""
        if out.state is not WAITING or not out.followups:
            return set()
        fresh = {new.id for new in out.followups if answers[new.id] == new.id and new.id not in self._jobs}
        stored = ({answers[new.id] for new in out.followups} | named_outside(out, answers, fresh)) - fresh
        circle = stored & self._ends.waiting_for(out.id) if stored else stored
        refuse_circle(out, answers, circle, fresh)
        return circle

    def _apply(self, old: Record, out: Outcome, answers: dict[str, str], circle: set[str], now: float) -> None:
        checkpoints = (
            tuple({**dict(old.checkpoints), **dict(out.checkpoints)}.items()) if out.checkpoints else old.checkpoints
        )
        row = replace(
            old,
            version=old.version + 1,
            attempt=out.attempt,
            result=out.result,
            value=out.value,
            error=out.error,
            reason=out.reason,
            checkpoints=checkpoints,
            note=out.note if out.note is not None else old.note,
            updated_at=now,
            function_done=old.function_done or out.function_done,
            worker=None,
        )
        if out.state.final:
            row = replace(row, version=old.version, worker=old.worker if old.state is RUNNING else None)
            self._ends.end(row, out.state, now, out.reason, out.error, out.keep)
            self._store_all(out.followups, answers, now)
            return
        if out.result is not None:
            self._tables.topics.add(f"job:{row.job.id}")
        self._tables.put(replace(row, queue_position=None, blocked_on=None, due_at=None, state=WAITING))
        self._store_all(out.followups, answers, now, parent=out.id)
        if out.state is READY and out.delay <= 0:
            self._tables.join(row, now)
        elif out.state is READY:
            self._ends.schedule(row, now + out.delay)
        else:
            self._wait(row, out, awaited(out, answers, circle), now)
        self._tables.unblock(old, now)

    def _wait(self, row: Record, out: Outcome, after: tuple[str, ...], now: float) -> None:
        due = first_moment(None if row.function_done else row.deadline_at, now + out.delay if out.delay > 0 else None)
        self._tables.put(
            replace(
                row,
                state=WAITING,
                after=after,
                pending=needed(out.required, after),
                failures_allowed=out.failures_allowed,
                queue_position=None,
                blocked_on=None,
                due_at=due,
            )
        )
        self._ends.watch_ups(row.job.id, after, now)

    # --- looking and tending

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return [self._jobs.get(id) for id in ids]

    async def find(self, query: Query) -> Page:
        return queries.find(list(self._jobs.values()), query)

    async def stats(self) -> Stats:
        now = self._now()
        workers = queries.workers(self._workers.values(), now)
        counts = queries.counts(self._jobs.values(), now)
        return Stats(counts=counts, workers=workers, limits=await self.limits())

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        tables, now = self._tables, self._now()
        if not use:
            return queries.limit_uses(tables.facts)
        blocked_on = {key: sum(map(len, queues.values())) for key, queues in tables.aside.items()}
        used = {key: tables.used(key).used for key in list(tables.started)}
        rates = {
            key: rate_use(rule, usage, now)
            for key, usage in tables.rates.items()
            if (rule := rule_for(tables.rules, key)) is not None
        }
        return queries.limit_uses(tables.facts, used, blocked_on, rates)

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        if self.checks:
            check_changes(changes)
        self._refuse()
        tables, now, before = self._tables, self._now(), dict(self._tables.facts)
        for change in changes:
            name = named(change)
            tables.set_facts(changed(tables.facts.get(name, LimitFacts(name=name)), change))
        if tables.facts == before:
            return
        for key in list(tables.aside):
            tables.call_in_for(key, now)
        tables.topics.update(f"queue:{queue}" for queue, line in tables.line.items() if line)
        self._speak()

    async def prune(self, limit: int) -> int:
        if self._shut():
            return 0
        now = self._now()
        self._advance_due(now)
        unfinished = [row for row in self._jobs.values() if not row.state.final]
        awaited = {up for row in unfinished for up in row.after}
        workflows = {row.job.root or row.job.id for row in unfinished}
        old = [
            (row.expires_at, row.job.id)
            for row in self._jobs.values()
            if row.expires_at is not None
            and row.expires_at <= now
            and row.job.id not in awaited
            and (row.job.root or row.job.id) not in workflows
        ]
        for _, id in sorted(old)[:limit]:
            row = self._jobs.pop(id)
            self._tables.take_out(row)
            self._ends.forget(row)
        self._tables.drop_unused(now)
        self._speak()
        return len(old[:limit])

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        return await self._waiters.wait(topics, timeout)

    # --- moving house

    async def read_mark(self) -> MoveState | None:
        return self._mark

    async def set_mark(self, mark: MoveState) -> None:
        check_replaces(self._mark, mark, self.name)
        self._mark = mark
        if self._shut() is None:
            transfer.open_again(self._tables, self._now())
            self._speak()

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        return transfer.unload(self._tables, self._ends, cursor, limit)

    async def load(self, load: Chunk, mark: MoveState) -> None:
        check_replaces(self._mark, mark, self.name)
        transfer.load(self._tables, self._ends, load)
        self._mark = mark
