"""Jobs in a SQLite database in memory, which only the connection of its program can reach.

No worker can claim them. Tests use it: they store, read and settle jobs inside their own transaction.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from treadle.core import clock
from treadle.core.errors import BadSession
from treadle.storage.sqlite.migrate import migrate
from treadle.storage.sqlite.user_transaction import Known, Plain, UserTransaction

NAME = ":memory:"


def make_tables_in_memory(raw: sqlite3.Connection, now: float) -> None:
    """Make the tables next to those that are there, or upgrade them. The connection must not be in a transaction."""
    migrate(raw, NAME, now, shared=True)


def within_memory(session: Any, now: clock.Clock) -> UserTransaction:
    """The methods inside the transaction of that connection."""
    return MemoryTransaction(session, Known(NAME, shared=True), now)


class MemoryTransaction(UserTransaction):
    """The methods on a connection to a database in memory; any other raises BadSession."""

    def _check_file(self, raw: sqlite3.Connection) -> None:
        for _, name, file in Plain(raw).execute("PRAGMA database_list"):
            if name == "main" and file:
                raise BadSession(f"a connection to {file}", "the jobs are in a SQLite database in memory")
