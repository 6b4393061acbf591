"""Whether a user's connection leads to the database of this storage, and whether that has our tables and functions.

A connection to the host, port and database of our URL is ours: then no other connection is needed for the check.
Otherwise the identities are compared: a mark in our schema plus the oid of the database, because a copy has the same
mark. An open storage knows its own; one that is not open reads it over a short connection, without waiting for locks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict

from treadle.core.errors import BadSession, StorageError
from treadle.storage.driver_sessions import DatabaseAddress
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Value, connect, connect_in_thread
from treadle.storage.postgres.errors import Cut, ServerError, translated
from treadle.storage.postgres.pool import CONNECT
from treadle.storage.postgres.statements import quoted, revision

# Returns NULL if there is no such schema, and fails only for a role without rights on it. A user's transaction may last
# for minutes, so it takes no gates of limits: see functions/gates.sql.
IDENTITY: Final = """
SELECT obj_description(to_regclass(%s), 'pg_class') || ' ' ||
       (SELECT oid FROM pg_database WHERE datname = current_database()),
       EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
               WHERE n.nspname = %s AND p.proname = %s),
       current_database(), current_setting('transaction_isolation'), current_setting('client_encoding'),
       set_config('treadle.gates', 'never', true)
"""


class Database(NamedTuple):
    """The database of a connection, as IDENTITY describes it.

    mark           the identity; None: there is no such schema
    has_functions  whether it has the functions of this version
    database       its name
    isolation      of the transaction
    encoding       of the client
    """

    mark: str | None
    has_functions: bool
    database: str
    isolation: str
    encoding: str


def database_in(row: Sequence[Any]) -> Database:
    """The row as the driver returned it: with client_encoding SQL_ASCII texts are bytes."""
    mark, has_functions, database, isolation, encoding, _ = row
    mark, database, isolation, encoding = (
        text.decode() if isinstance(text, bytes) else text for text in (mark, database, isolation, encoding)
    )
    return Database(mark, has_functions, database, isolation, encoding)


def parameters(address: Address) -> list[Value]:
    """The parameters of IDENTITY."""
    return [f"{quoted(address.schema)}.migration", address.schema, f"enqueue_within_{revision()}"]


class Identity:
    """Has the identity of our database in `known`; None until the storage is opened or a connection is checked."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._places = _places(address.conninfo)
        self._verified: WeakSet[Any] = WeakSet()
        self.known: str | None = None

    def is_verified(self, connection: object) -> bool:
        """Whether this connection was checked: it cannot move to another database."""
        return connection in self._verified

    def remember(self, connection: object) -> None:
        self._verified.add(connection)

    def forget(self, connection: object) -> None:
        """Check it again at its next call: its functions or tables are gone."""
        self._verified.discard(connection)

    async def check(self, found: Database, place: DatabaseAddress | None, waits: bool, session: str) -> None:
        """Raise BadSession unless the connection leads to our database, and StorageError if that has no tables of ours.

        place    where the user's connection leads to
        waits    there is an event loop to wait on
        session  its kind, for the error
        """
        if place in self._places:
            self._check_functions(found)
            self.known = found.mark
            return
        wanted = await self._get(waits)
        if found.mark is not None and found.mark != wanted:
            self.known = None  # a backup may have been restored since
            wanted = await self._get(waits)
        if found.mark != wanted:
            where = f"schema {self._address.schema!r} of {self._address.shown}"
            theirs = repr(found.database) if place is None else f"{found.database!r} at {place.host}:{place.port}"
            raise BadSession(session, f"it is a transaction of another database, {theirs}; the jobs are in {where}")

    async def _get(self, waits: bool) -> str:
        if self.known is None:
            try:
                theirs = await self._ask() if waits else self._ask_at_once()
            except (Cut, ServerError, OSError, psycopg.Error) as error:
                raise translated(error, self._address.shown) from error
            self._check_functions(theirs)
            self.known = theirs.mark
        assert self.known is not None
        return self.known

    def _check_functions(self, found: Database) -> None:
        """A process whose functions were there once creates them again; see `transaction.renew`."""
        if found.mark is None or (self.known is None and not found.has_functions):
            what = "has no tables of Treadle" if found.mark is None else "was created by another version of Treadle"
            raise StorageError(
                f"{self._address.shown}: the schema {self._address.schema!r} {what}; "
                "run `treadle storage migrate`, or open the app, before the first transaction"
            )

    async def _ask(self) -> Database:
        connection = await connect(self._address.conninfo, CONNECT)
        try:
            [row] = await (await connection.execute(IDENTITY, parameters(self._address))).fetchall()
        finally:
            connection.pgconn.finish()
        return database_in(row)

    def _ask_at_once(self) -> Database:
        connection = connect_in_thread(self._address.conninfo, autocommit=True)
        try:
            [row] = connection.execute(IDENTITY, parameters(self._address)).fetchall()
        finally:
            connection.pgconn.finish()
        return database_in(row)


def _places(conninfo: str) -> frozenset[DatabaseAddress]:
    """The databases that a connection string names: several hosts are copies of one. Empty: it names none exactly."""
    parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    hosts = parts.get("host", "").split(",")
    if not all(hosts) or "dbname" not in parts or "hostaddr" in parts or "service" in parts:
        return frozenset()
    ports = (parts.get("port") or os.environ.get("PGPORT") or "5432").split(",")
    if len(ports) not in (1, len(hosts)):
        return frozenset()
    port_of_host = ports * len(hosts) if len(ports) == 1 else ports
    return frozenset(
        DatabaseAddress(host, int(port or 5432), parts["dbname"])
        for host, port in zip(hosts, port_of_host, strict=True)
    )
