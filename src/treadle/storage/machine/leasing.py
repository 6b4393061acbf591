"""Takes the decisions of a claim: the queues it asks for, the jobs that their limits admit, and their leases.

Each storage walks along its queues in its own way: memory row by row, SQLite by pages.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property

from msgspec.structs import replace

from treadle.core.model import Claim, NewJob, Record, State
from treadle.storage.admission import Admission, Asker, Turn, opens_at, rule_for
from treadle.storage.machine import limits
from treadle.storage.machine.rows import Rows
from treadle.storage.row_rules import BLOCKED_MOST, costs, first_moment, keeps_key, order, within


def shares(rows: Rows, ask: Claim) -> list[tuple[str, int]]:
    """The queues of a claim, each with the most jobs to take from it: first its share, then the rest (law 2)."""
    if ask.ids:
        return [(queue, ask.limit) for queue in _queues_of(rows, ask)]
    return [*ask.queues, *((queue, ask.limit) for queue, _ in ask.queues)]


def _queues_of(rows: Rows, ask: Claim) -> list[str]:
    return [queue for queue in dict.fromkeys(rows.queues_of(ask.ids)) if within(ask.reach, queue)]


def next_start(rows: Rows, ask: Claim) -> float | None:
    """When the rate of a queue of this claim admits the next job."""
    moments: list[float | None] = []
    for queue in _queues_of(rows, ask) if ask.ids else dict(ask.queues):
        key = f"queue:{queue}"
        rule = rule_for(rows.rules, key)
        if rule is not None and rule.rate and rows.any_queued(queue):
            moments.append(opens_at(rule, rows.used(key), 1, rows.now))
    return first_moment(*moments)


class Leasing:
    """The decisions of one step of a claim."""

    def __init__(self, rows: Rows, ask: Claim) -> None:
        self._rows, self._ask = rows, ask
        self._gate: Admission | None = None
        self._shut: set[str] = set()  # limits that blocked a job
        self._first: dict[tuple[str, str], Asker | None] = {}  # limit, queue -> the first blocked job
        self._blocked = 0
        self.any_unblocked = False  # a blocked job was queued again
        self.running = frozenset(ask.running)

    @cached_property
    def room(self) -> dict[str, int]:
        """For each task with a bound: how many more of its jobs the worker takes. Not built while all queues are
        empty."""
        return {task: most for task, (most, _) in (self._ask.tasks or {}).items() if most is not None}

    @property
    def gate(self) -> Admission:
        if self._gate is None:
            self._gate = Admission(self._rows.rules, self._rows.used, self._rows.now)
        return self._gate

    @property
    def unfinished(self) -> bool:
        """Whether the claim has blocked so many jobs that other calls must get a turn before it continues."""
        return self._blocked >= BLOCKED_MOST

    def wants(self, job: NewJob) -> bool:
        """Whether the worker takes this job: there is room for its task, and the worker does not run it already."""
        return job.id not in self.running and self.room.get(job.task, 1) > 0

    def took(self, task: str) -> bool:
        """Count a job that was taken. Return whether its task has no room left."""
        if task not in self.room:
            return False
        self.room[task] -= 1
        return self.room[task] <= 0

    def admit(self, row: Record, write: Callable[[], None]) -> bool | None:
        """Whether all its limits admit a job. None: the limit of its queue does not. False: another limit does not; it
        blocks the job, which is no longer queued. `write` writes the leases that the storage has gathered; it is called
        before blocked jobs are queued again."""
        gate, kept, turn = self.gate, limits.kept(self._rows.rules, row), order(row)
        if row.function_done:
            gate.let_pass(costs(row.job), kept)
            return True
        if gate.blocked_by(((f"queue:{row.job.queue}", 1),), kept):
            return None
        shut = gate.blocked_by(row.job.limits, kept) or self.held_back_by(row.job, turn, kept)
        if shut is None:
            gate.admit(costs(row.job), kept)
            return True
        self._blocked += 1
        self._shut.add(shut)
        first = self._first.get((shut, row.job.queue))
        if first is None or turn < first.turn:
            self._first.pop((shut, row.job.queue), None)
        self._rows.put(replace(row, queue_position=None, blocked_on=shut, due_at=row.deadline_at))
        if row.blocked_on is not None and row.blocked_on != shut:
            write()
            self.any_unblocked |= limits.unblock_limit(self._rows, row.blocked_on)
            self._first.clear()
        return False

    def held_back_by(self, job: NewJob, turn: Turn, kept: Container[str] = ()) -> str | None:
        """The first limit of this job that already blocks an earlier job of the same queue, because that job needs more
        room than there is. Otherwise cheaper jobs would take that room again and again. If there is room for that other
        job, it waits only for jobs that were queued again before, perhaps of a task that no worker runs."""
        for key, cost in job.limits:
            if key in kept or not self.gate.may_lack(key, cost):
                continue
            first = self._first_blocked(key, job.queue)
            if first is not None and first.turn < turn and not self.gate.open(key, first.cost, first.kept):
                return key
        return None

    def _first_blocked(self, key: str, queue: str) -> Asker | None:
        if (key, queue) not in self._first:
            firsts = [next(iter(self._rows.blocked(key, queue, kept)), None) for kept in (True, False)]
            self._first[key, queue] = min((first for first in firsts if first is not None), default=None)
        return self._first[key, queue]

    def lease(self, row: Record) -> Record:
        rows, now = self._rows, self._rows.now
        leased = replace(
            row,
            version=row.version + 1,
            state=State.RUNNING,
            queue_position=None,
            blocked_on=None,
            worker=self._ask.worker,
            due_at=self.until(row.job),
            started_at=now,
            updated_at=now,
        )
        rows.put(leased)
        if row.job.key_until == "started" and not keeps_key(row, now):
            rows.drop_key(row)
        return leased

    def until(self, job: NewJob) -> float:
        """The end of the lease."""
        tasks = self._ask.tasks
        of_task = tasks[job.task][1] if tasks is not None else None
        return self._rows.now + (job.lease or of_task or self._ask.lease)

    def close(self) -> None:
        """Store the usage of the rates, and when the limits that blocked jobs admit the next."""
        gate = self._gate
        if gate is None:
            return
        for key in gate.spent:
            self._rows.save_usage(key, gate.of(key))
        self._rows.sync()
        for key in self._shut | gate.spent:
            limits.note_opening(self._rows, gate, key)
