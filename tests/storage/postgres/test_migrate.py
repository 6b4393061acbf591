"""Creating the schema and changing it, while other processes do the same; its owner, and the rights of other roles."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql

from tests.storage.postgres import support
from tests.storage.postgres.support import blocked_by, life
from treadle.errors import NotADatabase, SchemaTooNew, StorageError
from treadle.storage.postgres import PostgresStorage, migrate, statements


@pytest.fixture
def database() -> str:
    """An empty database for one test."""
    return support.postgres.database()


def execute(url: str, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(text.encode())
        return found.fetchall() if found.description else []


async def opened(url: str) -> PostgresStorage:
    storage = PostgresStorage(url)
    await storage.open()
    return storage


async def test_many_open_an_empty_database_at_once(database: str) -> None:
    """One of them creates the schema; all of them work."""
    storages = await asyncio.gather(*(opened(database) for _ in range(6)))
    assert execute(database, "SELECT count(*) FROM treadle.migration") == [(len(migrate.known()),)]
    assert execute(database, "SELECT count(*) FROM treadle.function_set") == [(1,)]
    for n, storage in enumerate(storages):
        await life(storage, f"j{n}")
        await storage.close()


NAMELESS = """
SELECT relname::text FROM pg_class c
WHERE relnamespace = 'treadle'::regnamespace AND relkind = 'r' AND relreplident <> 'f'
AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND indisprimary) ORDER BY relname
"""


async def test_every_table_can_be_published(database: str) -> None:
    """Each has a key or an identity of its rows, so a publication of all tables refuses no delete."""
    await (await opened(database)).close()
    assert execute(database, NAMELESS) == []


@pytest.mark.parametrize("schema", ['we"ird näme', "it's", "Mixed", "select", "a.b", "%s {schema}"])
async def test_any_name_of_a_schema(database: str, schema: str) -> None:
    from urllib.parse import quote

    storage = await opened(f"{database}?schema={quote(schema)}")
    watch = asyncio.create_task(storage.watch(["queue:default"], 10))
    await asyncio.sleep(0)
    await life(storage, "a")
    assert await watch == {"queue:default"}
    found = execute(database, "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information)'")
    assert {name for (name,) in found} == {"public", schema}
    await storage.close()


async def test_two_programs_in_one_database(database: str) -> None:
    one, two = await opened(f"{database}?schema=one"), await opened(f"{database}?schema=two")
    await life(one, "a")
    assert await two.get(["a"]) == [None]
    await life(two, "a")
    await one.close()
    await two.close()


async def test_a_newer_schema_is_refused(database: str) -> None:
    await (await opened(database)).close()
    execute(database, "INSERT INTO treadle.migration (number, name) VALUES (9999, 'later')")
    with pytest.raises(SchemaTooNew) as caught:
        await opened(database)
    assert caught.value.found == 9999


async def test_a_schema_of_another_program_is_refused(database: str) -> None:
    execute(database, "CREATE TABLE public.orders (id int)")
    with pytest.raises(NotADatabase, match="orders"):
        await opened(f"{database}?schema=public")
    assert execute(database, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == [
        ("orders",)
    ]


async def test_an_existing_empty_schema_is_used(database: str) -> None:
    execute(database, "CREATE SCHEMA treadle")
    storage = await opened(database)
    await life(storage, "a")
    await storage.close()


@pytest.fixture
def role() -> str:
    name = "r" + support.take_schema()
    support.admin().execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    return name


@pytest.mark.parametrize("hardened", [False, True])
async def test_a_role_with_no_more_than_it_needs(database: str, role: str, hardened: bool) -> None:
    """The schema has another owner. This role only works there, even if PUBLIC may execute nothing by default."""
    if hardened:
        execute(database, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    url = database.replace("postgres@", f"{role}@")
    with pytest.raises(StorageError, match="permission denied"):
        await opened(url)
    await (await opened(database)).close()
    for right in (
        f"GRANT USAGE ON SCHEMA treadle TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treadle TO {role}",
    ):
        execute(database, right)
    storage = await opened(url)
    await life(storage, "a")
    await storage.prune(10)
    await storage.close()


async def test_no_plan_is_compiled(database: str) -> None:
    """Servers before 18 estimate pinned plans as so expensive that they would compile them, for a statement of a
    millisecond."""
    await (await opened(database)).close()
    found = execute(
        database,
        "SELECT proname::text, proconfig FROM pg_proc WHERE proconfig IS NOT NULL AND "
        "pronamespace = 'treadle'::regnamespace AND NOT 'jit=off' = ANY(proconfig)",
    )
    assert found == []


async def test_versions_work_side_by_side(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a deploy each version has functions of its own over the same tables."""
    old = await opened(database)
    await life(old, "a")
    texts = (*statements.function_texts(), "-- a newer Treadle\n")
    monkeypatch.setattr(statements, "revision", lambda: "0123abcd")
    monkeypatch.setattr(migrate, "revision", lambda: "0123abcd")
    monkeypatch.setattr(migrate, "function_texts", lambda: texts)
    new = await opened(database)
    await life(new, "b")
    await life(old, "c")
    assert execute(
        database, "SELECT count(DISTINCT right(proname, 8)) FROM pg_proc p WHERE pronamespace = 'treadle'::regnamespace"
    ) == [(2,)]
    await old.close()
    await new.close()


async def test_functions_of_old_versions_are_dropped(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that still uses them creates them again when they are missing."""
    old = await opened(database)
    for n in range(migrate.KEEP):
        name = f"0000000{n}"
        monkeypatch.setattr(statements, "revision", lambda name=name: name)
        monkeypatch.setattr(migrate, "revision", lambda name=name: name)
        await (await opened(database)).close()
    monkeypatch.undo()
    sets = {name for (name,) in execute(database, "SELECT revision FROM treadle.function_set")}
    assert len(sets) == migrate.KEEP
    assert statements.revision() not in sets
    types = "SELECT right(relname, 8) FROM pg_class WHERE relkind = 'c' AND relnamespace = 'treadle'::regnamespace"
    assert {name for (name,) in execute(database, types)} == sets
    await life(old, "a")
    await old.close()


async def test_a_schema_that_was_dropped_is_created_again(database: str) -> None:
    """Its contents are gone; a storage that has it open continues."""
    storage = await opened(database)
    await life(storage, "a")
    execute(database, "DROP SCHEMA treadle CASCADE")
    await life(storage, "a")
    await storage.close()


async def test_a_migration_waits_for_locks_for_a_short_time_only(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its locks soon or gives up and retries, so that a long transaction on a table does not stop all others
    behind it."""
    import psycopg

    await (await opened(database)).close()
    script = "ALTER TABLE job ADD COLUMN later int"
    numbers = (*migrate.known(), (migrate.known()[-1][0] + 1, "later", script))
    monkeypatch.setattr(migrate, "known", lambda: numbers)
    monkeypatch.setattr(migrate, "LOCKS", "50ms")
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM treadle.job")
        opening = asyncio.create_task(opened(database))
        await blocked_by(other)
        for _ in range(20):  # claims of others go on meanwhile
            assert await asyncio.to_thread(execute, database, "SELECT count(*) FROM treadle.job") == [(0,)]
        assert not opening.done()
        other.rollback()
    storage = await opening
    assert await storage.schema() == numbers[-1][0]
    await storage.close()


async def test_schema_returns_the_number_of_the_schema(database: str) -> None:
    storage = PostgresStorage(database)
    assert await storage.schema() is None
    await storage.open()
    assert await storage.schema() == migrate.known()[-1][0]
    await storage.close()
