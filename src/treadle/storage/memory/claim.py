"""Walks along the queues of a claim and leases the first jobs that all limits admit.

One step blocks a bounded number of jobs, because no other call gets a turn meanwhile.
"""

from __future__ import annotations

from treadle.core.model import Claim, Record
from treadle.storage.machine.leasing import Leasing, shares
from treadle.storage.machine.limits import kept
from treadle.storage.memory.ordered import Ordered
from treadle.storage.memory.tables import Tables


class ClaimWalk:
    """One step of a claim. `unfinished`: there may be more jobs behind those that it blocked."""

    def __init__(self, tables: Tables, ask: Claim) -> None:
        self._tables, self._ask = tables, ask
        self._leasing = Leasing(tables, ask)
        self.taken: list[Record] = []

    @property
    def unfinished(self) -> bool:
        return self._leasing.unfinished

    def would_take_any(self) -> bool:
        """Whether `run` would lease or block a job. Changes nothing."""
        tables, gate = self._tables, self._leasing.gate
        for queue in dict(shares(tables, self._ask)) if self._ask.limit > 0 else ():
            line, own = tables.line[queue], f"queue:{queue}"
            for index in range(len(line)):
                row = tables.jobs[line[index][2]]
                if self._wanted(row) and (row.function_done or gate.open(own, 1, own in kept(tables.rules, row))):
                    return True
        return False

    def run(self) -> None:
        lines = self._tables.line
        for queue, share in shares(self._tables, self._ask):
            if line := lines.get(queue):
                self._walk(line, min(share, self._ask.limit - len(self.taken)))
        self._leasing.close()

    def _walk(self, line: Ordered, share: int) -> None:
        leasing, index = self._leasing, 0
        while share > 0 and index < len(line) and not leasing.unfinished:
            row = self._tables.jobs[line[index][2]]
            if self._wanted(row) and leasing.admit(row, self._tables.sync):
                self.taken.append(leasing.lease(row))
                leasing.took(row.job.task)
                share -= 1
            if index < len(line) and line[index][2] == row.job.id:
                index += 1

    def _wanted(self, row: Record) -> bool:
        ask, job = self._ask, row.job
        return (
            (not ask.ids or job.id in ask.ids)
            and (ask.tasks is None or job.task in ask.tasks)
            and self._leasing.wants(job)
        )
