"""Checks of a PostgreSQL database for `treadle doctor` and `treadle storage migrate`: schema, durability, dead rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from treadle.core.words import lasts, plural, size
from treadle.server.doctor.common import Check, fail, of_risk, ok, warn

if TYPE_CHECKING:
    from treadle.storage import PostgresHealth, PostgresStorage, Table

T = TypeVar("T")

OLD = 600.0  # s that a transaction may be open without a warning: it keeps dead rows from being vacuumed
DEAD = 50_000  # dead rows of a table above which to warn, if they also outnumber the live ones
FULL = 0.9  # share of max_connections above which to warn
HELD = 60.0  # s for which a transaction may hold keys and ids of jobs without a warning
KEPT = 2**30  # bytes of the log that an unused replication slot may keep without a warning


def is_postgres(url: str | None) -> bool:
    return urlsplit(url or "").scheme in ("postgresql", "postgres")


async def schema(url: str) -> int | None:
    """The schema number of the database; None if it has no tables of Treadle. Raises StorageError."""
    return await _with(url, lambda storage: storage.schema())


async def _with(url: str, act: Callable[[PostgresStorage], Awaitable[T]]) -> T:
    """Call `act` with a storage that is not opened, so that nothing is migrated."""
    from treadle.storage import PostgresStorage

    storage = PostgresStorage(url)
    try:
        return await act(storage)
    finally:
        await storage.close()


async def checks(url: str) -> AsyncIterator[Check]:
    """The checks of the database. Raises StorageError."""
    for check in judged(await _with(url, lambda storage: storage.health())):
        yield check


def judged(health: PostgresHealth) -> tuple[Check, ...]:
    """The checks of a health report."""
    return (
        *_server(health),
        *_promise(health),
        *_horizon(health),
        *_locks(health),
        *_published(health),
        *_tables(health.tables),
    )


def _server(health: PostgresHealth) -> Iterator[Check]:
    if not health.standby:
        yield ok("server", f"PostgreSQL {health.version}")
    used = f"{health.connections} of {plural(health.max_connections, 'connection')} in use"
    if health.connections > FULL * health.max_connections:
        yield warn("connections", used, "use smaller pools (?pool=), fewer processes, or a pooler such as PgBouncer")
    else:
        yield ok("connections", used)
    if health.encoding != "UTF8":
        yield warn(
            "encoding",
            f"the database has the encoding {health.encoding}, so the server does not validate text",
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, then `treadle storage move`",
        )
    if health.isolation != "read committed":
        yield warn(
            "isolation",
            f"the default is {health.isolation}, and jobs need read committed (with prepare=off "
            "Treadle does not set it)",
            "ALTER ROLE ... SET default_transaction_isolation = 'read committed'",
        )


def _promise(health: PostgresHealth) -> Iterator[Check]:
    risks = list(health.risks())
    yield from map(of_risk, risks)
    if not any(risk.name == "durability" for risk in risks):
        where = {
            "local": "on the disk of this server",
            "remote_write": "also written by the synchronous standbys",
            "remote_apply": "also applied by the synchronous standbys",
        }
        place = where.get(health.synchronous_commit, "on the disks of this server and of the synchronous standbys")
        yield ok("durability", f"synchronous_commit={health.synchronous_commit}: confirmed changes are {place}")


def _horizon(health: PostgresHealth) -> Iterator[Check]:
    if health.oldest is not None and health.oldest > OLD:
        yield warn(
            "transactions",
            f"the oldest has been open for {lasts(health.oldest)}: dead rows cannot be vacuumed meanwhile, "
            "and claims have to skip them",
            "find it in pg_stat_activity and end it; idle_in_transaction_session_timeout prevents such transactions",
        )
    else:
        yield ok("transactions", "none has been open for long")
    if health.prepared:
        yield warn(
            "prepared",
            f"{plural(health.prepared, 'transaction')} prepared and not finished",
            "COMMIT PREPARED or ROLLBACK PREPARED them: see pg_prepared_xacts",
        )
    if health.idle_slots:
        yield warn(
            "slots",
            f"{plural(health.idle_slots, 'unused replication slot')} may prevent vacuuming",
            "drop those that are not needed: see pg_replication_slots",
        )
    if not health.autovacuum:
        yield warn("autovacuum", "it is off: dead rows stay until an operator runs VACUUM", "set autovacuum = on")


def _locks(health: PostgresHealth) -> Iterator[Check]:
    """Transactions that hold keys, ids and rows of jobs: calls that need one of these wait, then raise Locked."""
    long = [holder for holder in health.holders if holder.pid is None or (holder.age or 0.0) > HELD]
    if not long:
        yield ok("locks", "no transaction has held keys or ids of jobs for long")
        return
    first = long[0]
    if first.pid is None:
        who, end = "a prepared transaction has", "COMMIT PREPARED or ROLLBACK PREPARED it: see pg_prepared_xacts"
    else:
        state = first.state and f", {first.state}"
        named = f" (application {first.application!r}{state})" if first.application or state else ""
        open_for = "" if first.age is None else f", open for {lasts(first.age)},"
        who = f"the transaction of server process {first.pid}{named}{open_for} has"
        end = f"let its program commit earlier; SELECT pg_terminate_backend({first.pid}) ends it"
    more = f", and so have {len(long) - 1} more" if len(long) > 1 else ""
    yield warn("locks", f"{who} stored jobs{more}: calls that need the same key or id raise Locked until it ends", end)


def _published(health: PostgresHealth) -> Iterator[Check]:
    nameless = [table.name for table in health.tables if not table.identified]
    cure = "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in nameless)
    if health.publications and nameless:
        yield fail(
            "publications",
            f"{health.publications} publish {', '.join(nameless)}, whose rows have no identity: the server refuses "
            "every delete there, and workers stop",
            cure,
        )
    elif nameless:
        yield warn(
            "publications",
            f"{', '.join(nameless)}: rows without an identity, so a publication of all tables would stop the workers",
            cure,
        )
    elif health.publications:
        yield ok("publications", f"{health.publications} publish the tables, whose rows all have an identity")
    if health.kept_wal is not None and health.kept_wal > KEPT:
        yield warn(
            "slots",
            f"a replication slot without a reader keeps {size(health.kept_wal)} of the write-ahead log: a full disk "
            "stops the server",
            "start its reader, drop the slot (see pg_replication_slots), or set max_slot_wal_keep_size",
        )


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
                f"{table.name}: {table.dead:,} dead and {table.live:,} live rows",
                "end long transactions, which prevent vacuuming; then run VACUUM",
            )
    denied = [table.name for table in tables if not table.usable]
    if denied:
        yield fail(
            "rights",
            f"this role may not read and write {', '.join(denied[:4])}",
            "as the owner: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ... TO ..., and ALTER DEFAULT "
            "PRIVILEGES for the tables of later versions",
        )
    foreign = [table.name for table in tables if not table.owned]
    if foreign:
        yield warn(
            "rights",
            f"this role does not own {', '.join(foreign[:4])}: it cannot vacuum or migrate them",
            "make it a member of the owner's role, or leave vacuum to autovacuum and migrate as the owner",
        )
