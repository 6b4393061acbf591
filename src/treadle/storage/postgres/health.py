"""Reads the state of the server that matters for jobs: its version, its durability settings, and what prevents vacuums.

`treadle doctor` uses it to find, for example, a transaction that was left open. It only reads.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from treadle.storage.postgres.pool import Runner
from treadle.storage.postgres.risks import Durability, durability

HEALTH: Final = """
SELECT current_setting('server_version'), current_setting('autovacuum') = 'on',
       current_setting('default_transaction_isolation'),
       (SELECT max(extract(epoch FROM now() - xact_start))::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()),
       (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()),
       (SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL AND NOT active),
       (SELECT max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
            ELSE pg_current_wal_lsn() END, restart_lsn))::float8 FROM pg_replication_slots WHERE NOT active),
       (SELECT string_agg(DISTINCT quote_ident(p.pubname), ', ') FROM pg_publication_tables t
        JOIN pg_publication p USING (pubname) WHERE t.schemaname = %s AND (p.pubupdate OR p.pubdelete)),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int, current_setting('server_encoding')
"""
TABLES: Final = """
SELECT c.relname::text, pg_total_relation_size(c.oid), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
       coalesce('autovacuum_enabled=false' = ANY(c.reloptions) OR 'autovacuum_enabled=off' = ANY(c.reloptions), false),
       pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
       AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'),
       c.relreplident IN ('f', 'i') OR c.relreplident = 'd'
       AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' ORDER BY c.relname
"""
# The transactions that hold the lock of `begin_call` (functions/move.sql): they have stored jobs, and hold their keys,
# ids and rows until they end. NULL: their times cannot be seen.
OPEN: Final = """
SELECT l.pid, coalesce(a.application_name, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
    coalesce(a.state, '')
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended(%s::text || ' move', 0)
ORDER BY 3 DESC NULLS LAST
"""
SCHEMA: Final = "SELECT max(number) FROM {schema}.migration"


class Table(Struct, frozen=True):
    """One of our tables. `dead`: rows that were deleted or replaced and not vacuumed yet; `owned`: we may vacuum it;
    `usable`: we may read and write its rows; `identified`: a publication can name its rows, so it allows deletes."""

    name: str
    size: int  # bytes, including its indexes
    live: int
    dead: int
    autovacuum_off: bool
    owned: bool
    usable: bool = True
    identified: bool = True


class Holder(Struct, frozen=True):
    """An open transaction that has stored jobs. pid None: a prepared one; age None: unknown."""

    pid: int | None
    application: str
    age: float | None
    state: str


class PostgresHealth(Durability, frozen=True, kw_only=True):
    """The state of the server. `oldest`: age in s of the longest transaction of this database; None: there is no
    other."""

    version: str
    autovacuum: bool
    isolation: str
    oldest: float | None
    prepared: int  # transactions prepared for two-phase commit and not finished
    idle_slots: int  # replication slots that hold back vacuum and have no reader
    kept_wal: float | None  # bytes of the log that slots without a reader keep; None: there are none
    publications: str  # those that publish changes of our tables; empty: none
    holders: tuple[Holder, ...]  # the oldest first
    connections: int
    max_connections: int
    encoding: str
    tables: tuple[Table, ...]


async def health(run: Runner, schema: str) -> PostgresHealth:
    [row] = await run.run(HEALTH, [schema], often=False)
    version, autovacuum, isolation, oldest, prepared, slots, kept, published, used, most, encoding = row
    holders = await run.run(OPEN, [schema], often=False)
    tables = await run.run(TABLES, [schema], often=False)
    return PostgresHealth(
        version=version,
        autovacuum=autovacuum,
        isolation=isolation,
        oldest=oldest,
        prepared=prepared,
        idle_slots=slots,
        kept_wal=kept,
        publications=published or "",
        holders=tuple(Holder(*row) for row in holders),
        connections=used,
        max_connections=most,
        encoding=encoding,
        tables=tuple(Table(*row) for row in tables),
        **asdict(await durability(run, schema)),
    )
