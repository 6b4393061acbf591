"""Keeps the counts: the changes of a transaction are added up in memory and stored as one row before its COMMIT.

A trigger would write a row for each job, and an UPDATE of each group costs 18,000 instructions: a call that ends and
claims jobs of five tasks would have ten.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Final

from treadle.storage.bounds import WAITING
from treadle.storage.count_groups import BY_STATE, LETTERS, KeptCounts, Row
from treadle.storage.sqlite.rows import from_json, text
from treadle.storage.sqlite.statements import load

SQL: Final = load("counts")
APPEND: Final = SQL["append"]
FOLD: Final = 64  # rows of changes from which on they are added to the stored numbers; a reader reads fewer

Execute = Callable[..., sqlite3.Cursor]
Groups = Counter[tuple[str, str, str]]
"""Queue, task, kind as stored -> jobs."""


class Changes:
    """The changes of one transaction to the kept counts. Changes are noted when the rows are written, not before."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str, str], int] = {}

    def add(self, queue: str, task: str, kind: str, jobs: int) -> None:
        group = queue, task, kind
        self._jobs[group] = self._jobs.get(group, 0) + jobs

    def move(self, queue: str, task: str, was: str, became: str, jobs: int = 1) -> None:
        if was != became:
            changes, before, after = self._jobs, (queue, task, was), (queue, task, became)
            changes[before] = changes.get(before, 0) - jobs
            changes[after] = changes.get(after, 0) + jobs

    def waiting(self, execute: Execute, queue: str) -> int:
        """How many jobs of a queue its bound counts, with the changes of this transaction."""
        stored, changes = execute(SQL["kept_waiting"], (queue,)).fetchone()
        found = (*added_up(changes).items(), *self._jobs.items())
        changed = sum(jobs for (of, _, kind), jobs in found if of == queue and LETTERS[kind[0]] in WAITING)
        return int(stored) + changed

    def drop_ended(self, execute: Execute, seqs: str) -> None:
        """These ended rows, a JSON array of numbers, are about to be deleted."""
        for queue, task, state, jobs in execute(SQL["ended"], (seqs,)).fetchall():
            self.add(queue, task, BY_STATE[state], -jobs)

    def drop_empty(self, execute: Execute) -> None:
        """Delete the rows of groups that have no jobs, for example of a limit's partitions."""
        fold(execute)
        execute(SQL["drop_empty"])

    def write(self, db: sqlite3.Connection) -> None:
        changes = [(*group, jobs) for group, jobs in self._jobs.items() if jobs]
        self._jobs.clear()
        if changes and (db.execute(APPEND, (text(changes),)).lastrowid or 0) >= FOLD:
            fold(db.execute)


def fold(execute: Execute) -> None:
    """Add all changes to the stored numbers, in the transaction of the caller."""
    for group, jobs in added_up(execute(SQL["changes"]).fetchone()[0]).items():
        if jobs and not execute(SQL["change"], (jobs, *group)).rowcount:
            execute(SQL["add"], (jobs, *group))
    execute(SQL["folded"])


def added_up(changes: str) -> Groups:
    """The sum of these rows of changes."""
    found = Groups()
    for row in from_json(changes):
        for queue, task, kind, jobs in row:
            found[queue, task, kind] += jobs
    return found


# --- reading


def kept_rows(db: sqlite3.Connection) -> list[Row]:
    """The groups that have jobs."""
    stored, changes = db.execute(SQL["kept"]).fetchone()
    found = added_up(changes)
    for queue, task, kind, jobs in from_json(stored):
        found[queue, task, kind] += jobs
    return [(*group, jobs) for group, jobs in found.items() if jobs]


def kept(db: sqlite3.Connection, now: float) -> KeptCounts:
    """Call this in a transaction: it takes two statements."""
    return KeptCounts(kept_rows(db), dict(db.execute(SQL["heads"]).fetchall()), now)


def kept_blocked(db: sqlite3.Connection) -> dict[str, int]:
    """How many jobs each limit blocks."""
    return KeptCounts(kept_rows(db), {}, 0.0).blocked()


def kept_ended(db: sqlite3.Connection) -> int:
    """How many jobs have ended."""
    stored, changes = db.execute(SQL["kept_ended"]).fetchone()
    return int(stored) + sum(jobs for (_, _, kind), jobs in added_up(changes).items() if kind in BY_STATE[3:])
