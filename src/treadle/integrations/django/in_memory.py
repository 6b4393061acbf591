"""The storage of a SQLite database in memory, as Django's test runner makes it: only Django's connection can reach it.

Jobs are stored by Django's connection, in tables of that database. Calls over a connection of Treadle's own see a
storage without jobs.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from treadle.core import clock
from treadle.storage import Bound, MemoryStorage, StorageProxy, make_tables_in_memory, within_memory
from treadle.storage.contract import Capabilities


class InMemoryDatabase(StorageProxy):
    """Stores jobs within transactions on a SQLite database in memory; everything else finds no job."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(clock.wall))

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.storage.capabilities, transactions=True)

    def within(self, given: Any) -> Bound:
        return within_memory(given, clock.wall)

    async def oldest_open(self) -> float:
        """Unknown: no job can be seen from here, so no text of a job may be deleted."""
        return math.inf

    def make_tables(self, connection: Any) -> None:
        """Make Treadle's tables there, unless they are there. `connection` is Django's, outside of a transaction."""
        connection.ensure_connection()
        make_tables_in_memory(connection.connection, clock.wall())
