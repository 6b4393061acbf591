"""Which database a storage lives in: a mark in our schema, and the database that holds it, as a copy has the same mark.

A storage that is open knows it. One that is not, asks once over a short connection of its own, which waits for no lock
and migrates nothing: `within=` needs no more.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from treadle.errors import StorageError
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import connect
from treadle.storage.postgres.errors import Cut, Said, translated
from treadle.storage.postgres.pool import CONNECT
from treadle.storage.postgres.statements import quoted, revision

# Answers NULL where there is no such schema, and never fails. A transaction of the user's may last for minutes, and so
# takes no gates of limits: see functions/gates.sql.
IDENTITY: Final = """
SELECT obj_description(to_regclass(%s), 'pg_class') || ' ' ||
       (SELECT oid FROM pg_database WHERE datname = current_database()),
       current_setting('transaction_isolation'), current_setting('client_encoding'),
       set_config('treadle.gates', 'never', true)
"""
_MADE: Final = """
SELECT EXISTS (
    SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = %s AND right(p.proname, 8) = %s
)
"""


def marked(address: Address) -> str:
    """The table whose comment is the mark."""
    return f"{quoted(address.schema)}.migration"


class Identity:
    """What is known of it; None: the storage was not opened, and nothing was asked yet."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.known: str | None = None

    async def again(self, waits: bool) -> str:
        """The identity as it is now: a backup may have been put in the place of what was known."""
        self.known = None
        return await self.get(waits)

    async def get(self, waits: bool) -> str:
        """The identity. `waits`: there is an event loop to wait on. Raises StorageError where `open` never was."""
        if self.known is None:
            try:
                found, made = await self._ask() if waits else self._ask_at_once()
            except (Cut, Said, OSError, psycopg.Error) as error:
                raise translated(error, self._address.shown) from error
            if found is None or not made:
                what = "Treadle has no tables in" if found is None else "another version of Treadle made"
                raise StorageError(
                    f"{self._address.shown}: {what} the schema {self._address.schema!r}; "
                    "run `treadle migrate`, or open the app, before the first transaction"
                )
            self.known = found
        return self.known

    async def _ask(self) -> tuple[str | None, bool]:
        made = await connect(self._address.conninfo, CONNECT)
        try:
            [one] = await (await made.execute(IDENTITY, [marked(self._address)])).fetchall()
            [two] = await (await made.execute(_MADE, [self._address.schema, revision()])).fetchall()
        finally:
            made.pgconn.finish()
        return one[0], two[0]

    def _ask_at_once(self) -> tuple[str | None, bool]:
        made: psycopg.Connection[Any] = psycopg.connect(self._address.conninfo, autocommit=True, prepare_threshold=None)
        try:
            [one] = made.execute(IDENTITY, [marked(self._address)]).fetchall()
            [two] = made.execute(_MADE, [self._address.schema, revision()]).fetchall()
        finally:
            made.pgconn.finish()
        return one[0], two[0]
