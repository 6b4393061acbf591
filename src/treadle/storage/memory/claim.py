"""Leasing the first in line that every limit lets through.

Without it no work is handed out. One step lets a bounded number step aside: nobody else gets a turn meanwhile.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.core.model import Claim, Record, State
from treadle.storage.admission import Admission
from treadle.storage.memory.endings import Endings
from treadle.storage.memory.tables import Tables
from treadle.storage.row_rules import ASIDE_MOST, costs, keeps_key, named_costs, within


class ClaimWalk:
    """One step of a claim along the lines. `unfinished`: there may be more behind those who stepped aside."""

    def __init__(self, tables: Tables, ends: Endings, ask: Claim, now: float) -> None:
        self._tables, self._ends, self._ask, self._now = tables, ends, ask, now
        self._gate = Admission(tables.rules, tables.used, now)
        self._room = {task: most for task, (most, _) in (ask.tasks or {}).items() if most is not None}
        self._running = frozenset(ask.running)
        self._aside = 0
        self.taken: list[Record] = []

    @property
    def unfinished(self) -> bool:
        return self._aside >= ASIDE_MOST

    def meets_anybody(self) -> bool:
        """Whether `run` would take anybody or let him step aside. Changes nothing."""
        tables, gate = self._tables, self._gate
        for queue in dict(self._queues()) if self._ask.limit > 0 else ():
            line, own = tables.line[queue], f"queue:{queue}"
            for at in range(len(line)):
                row = tables.jobs[line[at][2]]
                if self._wanted(row) and (row.function_done or gate.open(own, 1, own in tables.kept(row))):
                    return True
        return False

    def _queues(self) -> list[tuple[str, int]]:
        ask, jobs = self._ask, self._tables.jobs
        if ask.ids:
            queues = [jobs[id].job.queue for id in ask.ids if id in jobs]
            return [(queue, ask.limit) for queue in queues if within(ask.reach, queue)]
        return [*ask.queues, *((queue, ask.limit) for queue, _ in ask.queues)]

    def run(self) -> None:
        for queue, share in dict.fromkeys(self._queues()) if self._ask.ids else self._queues():
            self._walk(queue, min(share, self._ask.limit - len(self.taken)))
        for key in self._gate.spent:
            self._tables.set_opening(self._gate, key)

    def _walk(self, queue: str, share: int) -> None:
        line, at = self._tables.line[queue], 0
        while share > 0 and at < len(line) and not self.unfinished:
            row = self._tables.jobs[line[at][2]]
            if self._wanted(row) and self._admit(row):
                self.taken.append(self._lease(row))
                share -= 1
                if row.job.task in self._room:
                    self._room[row.job.task] -= 1
            if at < len(line) and line[at][2] == row.job.id:
                at += 1

    def _wanted(self, row: Record) -> bool:
        ask, id, task = self._ask, row.job.id, row.job.task
        return (
            id not in self._running
            and (not ask.ids or id in ask.ids)
            and (ask.tasks is None or task in ask.tasks)
            and self._room.get(task, 1) > 0
        )

    def _admit(self, row: Record) -> bool:
        """Past the limit of its queue and its own ones; a job its own limits hold back steps aside."""
        tables, gate, kept = self._tables, self._gate, self._tables.kept(row)
        if row.function_done:
            gate.let_pass(costs(row.job), kept)
            return True
        of_queue = ((f"queue:{row.job.queue}", 1),)
        if gate.blocked_by(of_queue, kept):
            return False
        shut = gate.blocked_by(named_costs(row.job), kept)
        if shut is None:
            gate.admit(costs(row.job), kept)
            return True
        self._aside += 1
        tables.put(replace(row, queue_position=None, blocked_on=shut, due_at=row.deadline_at))
        tables.set_opening(gate, shut)
        if row.blocked_on is not None and row.blocked_on != shut:
            tables.call_in_for(row.blocked_on, self._now)
        return False

    def _lease(self, row: Record) -> Record:
        ask, now = self._ask, self._now
        of_task = ask.tasks[row.job.task][1] if ask.tasks is not None else None
        leased = replace(
            row,
            version=row.version + 1,
            state=State.RUNNING,
            queue_position=None,
            blocked_on=None,
            worker=ask.worker,
            due_at=now + (row.job.lease or of_task or ask.lease),
            started_at=now,
            updated_at=now,
        )
        self._tables.put(leased)
        if row.job.key_until == "started" and not keeps_key(row, now):
            self._ends.drop_key(row)
        return leased
