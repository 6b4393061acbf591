"""Texts are stored unchanged, whatever encoding the database, the role, the environment or a user's connection has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.storage.postgres import support
from tests.storage.postgres.support import job, life
from treadle.core.model import Record
from treadle.errors import StorageError
from treadle.storage.postgres import PostgresStorage

TEXT = "Grüße, 日本, €"


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of this encoding."""
    name = f"in_{request.param}".lower()
    support.admin().execute(f"CREATE DATABASE {name} ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0".encode())
    yield support.postgres.url().rpartition("/")[0] + f"/{name}?listen=off"
    support.admin().execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def schema() -> Iterator[str]:
    with support.a_schema() as name:
        yield name


async def stored(storage: PostgresStorage, id: str) -> Record:
    [row] = await storage.get([id])
    assert row is not None
    return row


@pytest.mark.parametrize("database", ["LATIN1", "EUC_JP"], indirect=True)
async def test_a_database_without_most_characters_is_refused_by_name(database: str) -> None:
    with pytest.raises(StorageError, match=r"'in_\w+' has the encoding (LATIN1|EUC_JP).*ENCODING 'UTF8'"):
        await PostgresStorage(database).open()


@pytest.mark.parametrize("database", ["SQL_ASCII"], indirect=True)
async def test_a_database_without_an_encoding_keeps_texts(database: str) -> None:
    storage = PostgresStorage(database)
    await storage.open()
    try:
        plain, keyed = job("plain", payload=TEXT), job("keyed", payload=TEXT, key=TEXT)
        await storage.enqueue([plain])
        await storage.enqueue([keyed])
        assert [(await stored(storage, id)).job for id in ("plain", "keyed")] == [plain, keyed]
        await storage.enqueue([job("other", queue=TEXT)])
        [held] = await storage.enqueue([job("again", key=TEXT)])
        assert held.id == "keyed"
        assert (await storage.health()).encoding == "SQL_ASCII"
    finally:
        await storage.close()


@pytest.mark.parametrize("how", ["url", "environment", "role"])
async def test_a_client_encoding_does_not_change_texts(schema: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = support.url_of(schema)
    if how == "url":
        url += "&client_encoding=LATIN1"
    elif how == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    else:
        support.admin().execute(f"CREATE ROLE {schema} SUPERUSER LOGIN".encode())
        support.admin().execute(f"ALTER ROLE {schema} SET client_encoding = 'LATIN1'".encode())
        url = url.replace("postgres@", f"{schema}@")
    storage = PostgresStorage(url)
    await storage.open()
    try:
        await life(storage, "plain")
        sent = job("a", payload=TEXT, labels=(TEXT,))
        await storage.enqueue([sent])
        assert (await stored(storage, "a")).job == sent
    finally:
        await storage.close()
        if how == "role":
            support.admin().execute(f"REASSIGN OWNED BY {schema} TO postgres".encode())
            support.admin().execute(f"DROP OWNED BY {schema}; DROP ROLE {schema}".encode())


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "WIN1252"])
@pytest.mark.parametrize("sync", [False, True])
async def test_a_transaction_in_another_encoding(schema: str, encoding: str, sync: bool) -> None:
    """The same job and the same key; afterwards the connection uses its own encoding again."""
    storage, url = PostgresStorage(support.url_of(schema)), support.postgres.url()
    await storage.open()
    specs = [job("plain", payload=TEXT), job("keyed", payload=TEXT, key=TEXT)]
    try:
        theirs: Any
        if sync:
            theirs = psycopg.connect(url, client_encoding=encoding)
            for spec in specs:
                await storage.within(theirs).enqueue([spec])
            [(now,)] = theirs.execute("SHOW client_encoding").fetchall()
            theirs.commit()
            theirs.close()
        else:
            theirs = await psycopg.AsyncConnection.connect(url, client_encoding=encoding)
            for spec in specs:
                await storage.within(theirs).enqueue([spec])
            [(now,)] = await (await theirs.execute("SHOW client_encoding")).fetchall()
            await theirs.commit()
            await theirs.close()
        assert (now.decode() if isinstance(now, bytes) else now) == encoding
        assert [(await stored(storage, spec.id)).job for spec in specs] == specs
        [held] = await storage.enqueue([job("again", key=TEXT)])
        assert held.id == "keyed"
    finally:
        await storage.close()
