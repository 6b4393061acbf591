"""Reads many rows with all their columns in one piece.

The sqlite3 module releases the GIL at every row and every column. Row by row, a queued row costs 10,800 instructions to
read, as many as its lease; SQLite itself needs 1,300 of them.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from treadle.concurrency import forked_files, forks


class Ours(sqlite3.Connection):
    """A connection that a forked child never closes. Closing it there would roll back, in the shared index of the log,
    the write that the parent has in progress."""

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        self._path = path
        with forks.opening:
            super().__init__(path, *args, **options)
            forks.register(self)

    def forked(self) -> None:
        forked_files.leave(self, self._path)


class Gathering(Ours):
    """A connection with an SQL function that adds all columns of a row to `gathered` in one call."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        rows = self.gathered = list[Any]()

        def gather(*row: Any) -> None:
            rows.append(row)

        self.create_function("gather", -1, gather)


class BulkRead:
    """A SELECT of many columns. Without a LIMIT the order of its rows is undefined."""

    def __init__(self, statement: str) -> None:
        columns, _, _ = statement.removeprefix("SELECT ").partition(" FROM ")
        names = ", ".join(column.rpartition(".")[2] for column in columns.split(", "))
        self._plain, self._whole = statement, f"SELECT count(gather({names})) FROM ({statement})"

    def rows(self, db: sqlite3.Connection, values: Any) -> list[Any]:
        """All rows; one by one on a user's own connection, which does not have the function."""
        if not isinstance(db, Gathering):
            return db.execute(self._plain, values).fetchall()
        db.gathered.clear()
        db.execute(self._whole, values).fetchone()
        rows = db.gathered[:]
        db.gathered.clear()
        return rows
