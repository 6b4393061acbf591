"""Keeps the counts: the changes of a transaction are added up in memory and stored as one row before its COMMIT.

A trigger would write a row for each job, and an UPDATE of each group costs 18,000 instructions: a call that ends and
claims jobs of five tasks would have ten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from treadle.storage.bounds import WAITING
from treadle.storage.count_groups import BY_STATE, LETTERS, KeptCounts, Row
from treadle.storage.sqlite.rows import from_json, text
from treadle.storage.sqlite.statements import load

SQL: Final = load("counts")
APPEND: Final = SQL["append"]
FOLD: Final = 64  # this many rows of changes are added to the stored numbers; a reader reads fewer

Execute = Callable[..., sqlite3.Cursor]
Groups = dict[tuple[str, str], dict[str, int]]
"""Queue, task -> kind as stored -> jobs: a third fewer instructions than with one key."""


class Changes(Struct):
    """The changes of one transaction to the kept counts. Changes are noted when the rows are written, not before."""

    _jobs: Groups = field(default_factory=dict)

    def add(self, queue: str, task: str, kind: str, jobs: int) -> None:
        kinds = self._jobs.setdefault((queue, task), {})
        kinds[kind] = kinds.get(kind, 0) + jobs

    def move(self, queue: str, task: str, was: str, became: str, jobs: int = 1) -> None:
        if was != became:
            kinds = self._jobs.setdefault((queue, task), {})
            kinds[was] = kinds.get(was, 0) - jobs
            kinds[became] = kinds.get(became, 0) + jobs

    def waiting(self, execute: Execute, queue: str) -> int:
        """How many jobs of a queue its bound counts, with the changes of this transaction."""
        stored, changes = execute(SQL["kept_waiting"], (queue,)).fetchone()
        rows = *rows_of(added_up(changes)), *rows_of(self._jobs)
        return int(stored) + sum(jobs for of, _, kind, jobs in rows if of == queue and LETTERS[kind[0]] in WAITING)

    def drop_ended(self, execute: Execute, seqs: str) -> None:
        """These ended rows, a JSON array of numbers, are about to be deleted."""
        for queue, task, state, jobs in execute(SQL["ended"], (seqs,)).fetchall():
            self.add(queue, task, BY_STATE[state], -jobs)

    def drop_empty(self, execute: Execute) -> None:
        """Delete the rows of groups that have no jobs, for example of a limit's partitions."""
        fold(execute)
        execute(SQL["drop_empty"])

    def write(self, db: sqlite3.Connection) -> None:
        changes = [(*group, kinds) for group, kinds in self._jobs.items() if any(kinds.values())]
        self._jobs.clear()
        if changes and (db.execute(APPEND, (text(changes),)).lastrowid or 0) >= FOLD:
            fold(db.execute)


def fold(execute: Execute) -> None:
    """Add all changes to the stored numbers, in the transaction of the caller."""
    for *group, jobs in rows_of(added_up(execute(SQL["changes"]).fetchone()[0])):
        if not execute(SQL["change"], (jobs, *group)).rowcount:
            execute(SQL["add"], (jobs, *group))
    execute(SQL["clear_changes"])


def added_up(changes: str) -> Groups:
    """The sum of these rows of changes."""
    total: Groups = {}
    for row in from_json(changes):
        for queue, task, kinds in row:
            sums = total.setdefault((queue, task), {})
            for kind, jobs in kinds.items():
                sums[kind] = sums.get(kind, 0) + jobs
    return total


def rows_of(groups: Groups) -> list[Row]:
    """The groups that have jobs, or whose number of jobs changes."""
    return [(*group, kind, jobs) for group, kinds in groups.items() for kind, jobs in kinds.items() if jobs]


# --- reading


def kept_rows(db: sqlite3.Connection) -> list[Row]:
    """The groups that have jobs."""
    stored, changes = db.execute(SQL["kept"]).fetchone()
    groups = added_up(changes)
    for queue, task, kind, jobs in from_json(stored):
        sums = groups.setdefault((queue, task), {})
        sums[kind] = sums.get(kind, 0) + jobs
    return rows_of(groups)


def kept(db: sqlite3.Connection, now: float) -> KeptCounts:
    """Call this in a transaction: it takes two statements."""
    return KeptCounts(kept_rows(db), dict(db.execute(SQL["heads"]).fetchall()), now)


def kept_ended(db: sqlite3.Connection) -> int:
    """How many jobs have ended."""
    stored, changes = db.execute(SQL["kept_ended"]).fetchone()
    return int(stored) + sum(jobs for _, _, kind, jobs in rows_of(added_up(changes)) if kind in BY_STATE[3:])
