"""The identity of a database: a mark in our schema plus the oid of the database, because a copy has the same mark.

An open storage knows it. A storage that is not open reads it once over a short connection of its own, without waiting
for locks and without migrating: `within=` needs no more.
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

# Returns NULL if there is no such schema, and never fails. A user's transaction may last for minutes, so it takes no
# gates of limits: see functions/gates.sql.
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
    """The identity in `known`; None: the storage was not opened, and it was not read yet."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.known: str | None = None

    async def again(self, waits: bool) -> str:
        """The identity, read again: a backup may have been restored since."""
        self.known = None
        return await self.get(waits)

    async def get(self, waits: bool) -> str:
        """The identity. `waits`: there is an event loop to wait on. Raises StorageError if the schema was never
        created."""
        if self.known is None:
            try:
                found, made = await self._ask() if waits else self._ask_at_once()
            except (Cut, Said, OSError, psycopg.Error) as error:
                raise translated(error, self._address.shown) from error
            if found is None or not made:
                what = "has no tables of Treadle" if found is None else "was created by another version of Treadle"
                raise StorageError(
                    f"{self._address.shown}: the schema {self._address.schema!r} {what}; "
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
