"""Many rows of many columns, handed over whole: the sqlite3 module lets go of the GIL at every row and every column.

Without it reading a row of a line would cost as much as leasing it: 10,800 instructions, of which 1,300 are SQLite's.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from treadle.concurrency import forks


class Ours(sqlite3.Connection):
    """A connection that a forked child leaves alone. To close it there would roll back, in the shared index of the log,
    what the parent is writing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        with forks.opening:
            super().__init__(*args, **options)
            forks.register(self)

    def forked(self) -> None:
        forks.leave(self)


class Gathering(Ours):
    """A connection with an SQL function that takes the columns of a row all at once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        rows = self._rows = list[Any]()

        def gather(*row: Any) -> None:
            rows.append(row)

        self.create_function("gather", -1, gather)

    def gathered(self, statement: str, values: Any) -> list[Any]:
        self._rows.clear()
        self.execute(statement, values).fetchone()
        found = self._rows[:]
        self._rows.clear()
        return found


class BulkRead:
    """A SELECT of many columns. One without a LIMIT may answer in any order."""

    def __init__(self, statement: str) -> None:
        columns, _, _ = statement.removeprefix("SELECT ").partition(" FROM ")
        names = ", ".join(column.rpartition(".")[2] for column in columns.split(", "))
        self._plain, self._whole = statement, f"SELECT count(gather({names})) FROM ({statement})"

    def rows(self, db: sqlite3.Connection, values: Any) -> list[Any]:
        """All its rows; one by one where the connection is the user's own, which has no such function."""
        if isinstance(db, Gathering):
            return db.gathered(self._whole, values)
        return db.execute(self._plain, values).fetchall()
