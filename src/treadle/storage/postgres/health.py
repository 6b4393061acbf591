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
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int, current_setting('server_encoding')
"""
TABLES: Final = """
SELECT c.relname::text, pg_total_relation_size(c.oid), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
       coalesce('autovacuum_enabled=false' = ANY(c.reloptions) OR 'autovacuum_enabled=off' = ANY(c.reloptions), false),
       pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
       AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' ORDER BY c.relname
"""
SCHEMA: Final = "SELECT max(number) FROM {schema}.migration"


class Table(Struct, frozen=True):
    """One of our tables. `dead`: rows that were deleted or replaced and not vacuumed yet; `owned`: we may vacuum it;
    `usable`: we may read and write its rows."""

    name: str
    size: int  # bytes, including its indexes
    live: int
    dead: int
    autovacuum_off: bool
    owned: bool
    usable: bool = True


class PostgresHealth(Durability, frozen=True, kw_only=True):
    """The state of the server. `oldest`: age in s of the longest transaction of this database; None: there is no
    other."""

    version: str
    autovacuum: bool
    isolation: str
    oldest: float | None
    prepared: int  # transactions prepared for two-phase commit and not finished
    idle_slots: int  # replication slots that hold back vacuum and have no reader
    connections: int
    max_connections: int
    encoding: str
    tables: tuple[Table, ...]


async def health(run: Runner, schema: str) -> PostgresHealth:
    [(version, autovacuum, isolation, oldest, prepared, slots, used, most, encoding)] = await run.run(
        HEALTH, [], often=False
    )
    tables = await run.run(TABLES, [schema], often=False)
    return PostgresHealth(
        version=version,
        autovacuum=autovacuum,
        isolation=isolation,
        oldest=oldest,
        prepared=prepared,
        idle_slots=slots,
        connections=used,
        max_connections=most,
        encoding=encoding,
        tables=tuple(Table(*row) for row in tables),
        **asdict(await durability(run, schema)),
    )
