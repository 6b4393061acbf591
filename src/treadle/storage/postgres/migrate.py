"""Migrates a schema to what this version of Treadle needs; refuses one that is not ours or is newer.

Any number of processes may open at once. Each migration is one transaction under an advisory lock, and the functions of
this version are created next to those of others.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import psycopg

from treadle.core.errors import NotADatabase, SchemaTooNew, StorageUnavailable
from treadle.storage.migrations import scripts
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import connect
from treadle.storage.postgres.errors import Cut, ServerError, translated
from treadle.storage.postgres.pool import CONNECT
from treadle.storage.postgres.statements import channel_of, function_texts, quoted, renamed, revision

KEEP: Final = 4  # function sets kept: the newest ones; a process whose set is gone creates it again
LOCKS: Final = "5s"  # how long a migration waits for a table: later statements on that table queue behind it
TRIES: Final = 12  # attempts of a migration that could not get a lock
WAIT: Final = 60.0  # s to wait for another process that migrates

Connection = psycopg.AsyncConnection[Any]
T = TypeVar("T")

_FRAME: Final = """
CREATE TABLE migration (number int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE function_set (revision text PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now());
"""
_OURS: Final = """
SELECT n.oid IS NOT NULL, to_regclass(%(schema)s || '.migration') IS NOT NULL,
       (SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
        WHERE relnamespace = n.oid AND relkind IN ('r', 'p'))
FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = %(name)s
"""
_OLD_FUNCTIONS: Final = """
SELECT format('DROP FUNCTION %%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %s AND right(p.proname, 8) = %s
"""
_OLD_TYPES: Final = """
SELECT format('DROP TYPE %%I.%%I CASCADE', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'c' AND right(c.relname, 8) = %s
"""

# Hardened servers revoke the default EXECUTE of PUBLIC. The functions run with the rights of their caller, so this
# grants no access to the tables.
_GRANTS: Final = """
SELECT string_agg(format('GRANT EXECUTE ON FUNCTION %%s TO PUBLIC', p.oid::regprocedure), '; ')
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %s AND right(p.proname, 8) = %s
"""


def known() -> tuple[tuple[int, str, str], ...]:
    """(number, name, script) of every migration, in order."""
    return scripts("treadle.storage.postgres")


def newest() -> int:
    """The number of the newest schema, which this Treadle uses."""
    return known()[-1][0]


async def migrate(address: Address) -> None:
    """Apply all missing migrations. Raises NotADatabase, SchemaTooNew, StorageUnavailable, StorageError (a missing
    privilege)."""
    await _with_connection(address, lambda connection: _bring(connection, address))


async def schema_of(address: Address) -> int:
    """The number of the last migration applied; 0: none. Raises NotADatabase, SchemaTooNew."""
    return (await readable_state(address))[0]


async def readable_state(address: Address) -> tuple[int, bool]:
    """As `state`, which changes nothing, on a connection of its own."""
    return await _with_connection(address, lambda connection: state(connection, address))


async def _with_connection(address: Address, act: Callable[[Connection], Awaitable[T]]) -> T:
    try:
        connection = await connect(address.conninfo, CONNECT)
    except (Cut, ServerError, OSError) as error:
        raise translated(error, address.shown) from error
    try:
        async with asyncio.timeout(WAIT + 2 * TRIES * 5):
            return await act(connection)
    except psycopg.Error as error:
        raise translated(error, address.shown) from error
    except TimeoutError as error:
        raise StorageUnavailable(f"{address.shown}: the schema could not be migrated in time") from error
    finally:
        connection.pgconn.finish()


async def _bring(connection: Connection, address: Address) -> None:
    number, functions = await state(connection, address)
    newest = known()[-1][0]
    for attempt in range(TRIES):
        try:
            while number < newest:
                number = await _apply_next(connection, address)
            if not functions:
                await _make_functions(connection, address)
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if attempt == TRIES - 1:
                raise
            await asyncio.sleep(0.5)


async def state(connection: Connection, address: Address) -> tuple[int, bool]:
    """The number of the last migration applied, and whether our functions exist.

    Raises NotADatabase, SchemaTooNew.
    """
    schema = quoted(address.schema)
    row = await _row(connection, _OURS, {"schema": schema, "name": address.schema})
    there, ours, tables = row
    if not there or not ours:
        if tables:
            raise NotADatabase(
                f"{address.shown}: the schema {address.schema!r} holds other tables ({', '.join(tables[:5])}); "
                "give Treadle a schema of its own with ?schema="
            )
        return 0, False
    table = schema.replace("%", "%%")
    number, functions = await _row(
        connection,
        f"SELECT coalesce(max(number), 0), EXISTS (SELECT FROM {table}.function_set WHERE revision = %s) "
        f"FROM {table}.migration",
        (revision(),),
    )
    if number > known()[-1][0]:
        raise SchemaTooNew(number, known()[-1][0])
    return number, functions


async def _apply_next(connection: Connection, address: Address) -> int:
    """Applies the next migration, unless another process has applied all of them -> the number reached."""
    async with connection.transaction():
        await _lock(connection, address)
        reached, _ = await state(connection, address)
        for number, name, script in known():
            if number > reached:
                await _enter_schema(connection, address)
                if not reached:
                    await _script(connection, _FRAME)
                    await _script(connection, f"COMMENT ON TABLE migration IS 'Treadle {secrets.token_hex(16)}'")
                await _script(connection, script)
                await connection.execute("INSERT INTO migration (number, name) VALUES (%s, %s)", (number, name))
                return number
        return reached


async def _make_functions(connection: Connection, address: Address) -> None:
    async with connection.transaction():
        await _lock(connection, address)
        _, there = await state(connection, address)
        if there:
            return
        await _enter_schema(connection, address, make=False)
        await connection.execute("SET LOCAL check_function_bodies = off")
        await _drop(connection, address, revision())  # a part of the set exists only after manual changes
        kinds = " ".join(f"WHEN '{kind}' THEN '{channel_of(address.schema, kind)}'" for kind in ("say", "ends"))
        own = "CREATE FUNCTION channel(kind text) RETURNS text LANGUAGE sql IMMUTABLE AS "
        for text in (f"{own} $$ SELECT CASE kind {kinds} END $$", *function_texts()):
            await _script(connection, renamed(text))
        [grants] = await _row(connection, _GRANTS, (address.schema, revision()))
        await _script(connection, grants)
        await connection.execute("INSERT INTO function_set (revision) VALUES (%s)", (revision(),))
        old = await connection.execute("SELECT revision FROM function_set ORDER BY made_at DESC OFFSET %s", (KEEP,))
        for (other,) in await old.fetchall():
            await _drop(connection, address, other)
            await connection.execute("DELETE FROM function_set WHERE revision = %s", (other,))


async def _drop(connection: Connection, address: Address, which: str) -> None:
    for statement in (_OLD_FUNCTIONS, _OLD_TYPES):
        cursor = await connection.execute(statement, (address.schema, which))
        for (drop,) in await cursor.fetchall():
            await _script(connection, drop)


async def _lock(connection: Connection, address: Address) -> None:
    """One process at a time for this schema, until the end of the transaction, so it works behind any pooler."""
    key = hashlib.blake2b(f"treadle:{address.schema}".encode(), digest_size=8).digest()
    await connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    await connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{WAIT:.0f}s",))
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(key, "big", signed=True),))
    await connection.execute("SELECT set_config('lock_timeout', %s, true)", (LOCKS,))


async def _enter_schema(connection: Connection, address: Address, make: bool = True) -> None:
    schema = quoted(address.schema)
    if make and not (await _row(connection, "SELECT to_regnamespace(%s) IS NOT NULL", (schema,)))[0]:
        await _script(connection, f"CREATE SCHEMA {schema}")
    await _script(connection, f"SET LOCAL search_path = {schema}, pg_temp")


async def _row(connection: Connection, text: str, values: Any) -> tuple[Any, ...]:
    cursor = await connection.execute(text.encode(), values)
    [row] = await cursor.fetchall()
    return cast("tuple[Any, ...]", row)


async def _script(connection: Connection, text: str) -> None:
    """Executes several statements without parameters: a % is sent unchanged."""
    await connection.execute(text.encode())
