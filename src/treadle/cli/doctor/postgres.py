"""What `treadle doctor` and `treadle migrate` say of a PostgreSQL database: schema, promises, what holds dead rows.

Without it a transaction somebody forgot would be found by the queue becoming slower every hour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from treadle.cli.doctor.common import Check, fail, ok, warn
from treadle.cli.output import lasts, plural, size

if TYPE_CHECKING:
    from treadle.storage.postgres import Health, PostgresStorage, Table

T = TypeVar("T")

OLD = 600.0  # s a transaction may be open before we say so: dead rows gather behind it
DEAD = 50_000  # dead rows of a table worth a word, if they are also a large part of it
FULL = 0.9  # of max_connections


def is_postgres(url: str | None) -> bool:
    return urlsplit(url or "").scheme in ("postgresql", "postgres")


async def schema(url: str) -> int | None:
    """The number of its schema; None if there is none. Raises StorageError."""
    return await _with(url, lambda storage: storage.schema())


async def _with(url: str, act: Callable[[PostgresStorage], Awaitable[T]]) -> T:
    """Nothing is opened, so nothing is migrated."""
    from treadle.storage.postgres import PostgresStorage

    storage = PostgresStorage(url)
    try:
        return await act(storage)
    finally:
        await storage.close()


async def checks(url: str) -> AsyncIterator[Check]:
    """What can be seen of the server. Raises StorageError."""
    for check in judged(await _with(url, lambda storage: storage.health())):
        yield check


def judged(found: Health) -> tuple[Check, ...]:
    """What to say of it."""
    return (*_server(found), *_promise(found), *_horizon(found), *_tables(found.tables))


def _server(found: Health) -> Iterator[Check]:
    if found.standby:
        yield fail(
            "server",
            f"PostgreSQL {found.version}, a standby: nothing can be written",
            "name the primary, or all servers and target_session_attrs=read-write",
        )
    else:
        yield ok("server", f"PostgreSQL {found.version}")
    used = f"{found.connections} of {plural(found.max_connections, 'connection')} in use"
    if found.connections > FULL * found.max_connections:
        yield warn("connections", used, "smaller pools (?pool=), fewer processes, or a pooler such as PgBouncer")
    else:
        yield ok("connections", used)
    if found.encoding != "UTF8":
        yield warn(
            "encoding",
            f"the database is encoded in {found.encoding}, so the server checks no text it is sent",
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, then `treadle move`",
        )
    if found.isolation != "read committed":
        yield warn(
            "isolation",
            f"the default is {found.isolation}, and jobs need read committed (with prepare=off "
            "Treadle sets nothing itself)",
            "ALTER ROLE ... SET default_transaction_isolation = 'read committed'",
        )


def _promise(found: Health) -> Iterator[Check]:
    if not found.fsync or not found.full_page_writes:
        off = "fsync" if not found.fsync else "full_page_writes"
        yield fail("durability", f"{off} is off: a crash of the machine may destroy the database", f"set {off} = on")
    elif found.synchronous_commit == "off":
        yield warn(
            "durability",
            "synchronous_commit is off: a crash may take the last moments of what was answered",
            "ALTER ROLE ... SET synchronous_commit = on, if jobs must not be lost",
        )
    else:
        where = {
            "local": "on the disk here",
            "remote_write": "written by the standbys that are waited for",
            "remote_apply": "applied by the standbys that are waited for",
        }
        said = where.get(found.synchronous_commit, "on the disk, and on that of each standby that is waited for")
        yield ok("durability", f"synchronous_commit={found.synchronous_commit}: what was answered is {said}")


def _horizon(found: Health) -> Iterator[Check]:
    if found.oldest is not None and found.oldest > OLD:
        yield warn(
            "transactions",
            f"the oldest has been open for {lasts(found.oldest)}: rows that ended since cannot "
            "be cleaned up, and claims walk over them",
            "find it in pg_stat_activity and end it; idle_in_transaction_session_timeout prevents the next one",
        )
    else:
        yield ok("transactions", "none has been open for long")
    if found.prepared:
        yield warn(
            "prepared",
            f"{plural(found.prepared, 'transaction')} prepared and never finished",
            "COMMIT PREPARED or ROLLBACK PREPARED them: see pg_prepared_xacts",
        )
    if found.idle_slots:
        yield warn(
            "slots",
            f"{plural(found.idle_slots, 'replication slot')} nobody reads hold rows back",
            "drop those not needed: see pg_replication_slots",
        )
    if not found.autovacuum:
        yield warn("autovacuum", "it is off: dead rows stay until somebody vacuums", "set autovacuum = on")


def _tables(tables: tuple[Table, ...]) -> Iterator[Check]:
    yield ok("tables", f"{size(sum(table.size for table in tables))} with their indexes")
    for table in tables:
        if table.autovacuum_off:
            yield warn(
                "autovacuum", f"it is off for {table.name}", f"ALTER TABLE {table.name} RESET (autovacuum_enabled)"
            )
        if table.dead > DEAD and table.dead > table.live:
            yield warn(
                "dead rows",
                f"{table.name}: {table.dead:,} beside {table.live:,} live ones",
                "does a long transaction hold them back? Else: VACUUM",
            )
    foreign = [table.name for table in tables if not table.owned]
    if foreign:
        yield warn(
            "rights",
            f"this role does not own {', '.join(foreign[:4])}: it cannot vacuum when that is due, nor migrate",
            "make it a member of the owner's role, or leave vacuum to autovacuum and migrate as the owner",
        )
