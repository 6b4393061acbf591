"""Keeps the counts: the changes of a transaction are added up in memory and written before its COMMIT, a row for each
group. A trigger would write one for each job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from treadle.storage.bounds import WAITING
from treadle.storage.count_groups import BY_STATE, LETTERS, KeptCounts
from treadle.storage.sqlite.rows import from_json
from treadle.storage.sqlite.statements import load

SQL: Final = load("counts")
CHANGE, ADD = SQL["change"], SQL["add"]


class Changes:
    """The changes of one transaction to the kept counts. Changes are noted when the rows are written, not before."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str, str], int] = {}

    def add(self, queue: str, task: str, kind: str, jobs: int) -> None:
        group = queue, task, kind
        self._jobs[group] = self._jobs.get(group, 0) + jobs

    def move(self, queue: str, task: str, was: str, became: str, jobs: int = 1) -> None:
        if was != became:
            self.add(queue, task, was, -jobs)
            self.add(queue, task, became, jobs)

    def waiting(self, queue: str) -> int:
        """The change of the number of jobs that the bound of a queue counts."""
        return sum(jobs for (of, _, kind), jobs in self._jobs.items() if of == queue and LETTERS[kind[0]] in WAITING)

    def drop_ended(self, execute: Callable[..., Any], seqs: str) -> None:
        """These ended rows, a JSON array of numbers, are about to be deleted."""
        for queue, task, state, jobs in execute(SQL["ended"], (seqs,)).fetchall():
            self.add(queue, task, BY_STATE[state], -jobs)

    def drop_empty(self, execute: Callable[..., Any]) -> None:
        """Delete the rows of groups that have no jobs, for example of a limit's partitions."""
        execute(SQL["drop_empty"])

    def write(self, db: sqlite3.Connection) -> None:
        for group, jobs in self._jobs.items():
            if jobs and not db.execute(CHANGE, (jobs, *group)).rowcount:
                db.execute(ADD, (jobs, *group))
        self._jobs.clear()


# --- reading


def kept(db: sqlite3.Connection, now: float) -> KeptCounts:
    """Call this in a transaction: it takes two statements."""
    rows = from_json(db.execute(SQL["kept"]).fetchone()[0])
    return KeptCounts(rows, dict(db.execute(SQL["heads"]).fetchall()), now)


def kept_blocked(db: sqlite3.Connection) -> dict[str, int]:
    """How many jobs each limit blocks."""
    return KeptCounts(from_json(db.execute(SQL["kept"]).fetchone()[0]), {}, 0.0).blocked()
