"""psycopg2, which has no parameters at the server: literals, encodings, and connections that cannot be used."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extensions
import psycopg2.extras
import pytest

from tests.storage.postgres import support
from tests.storage.postgres.support import job
from treadle.errors import BadSession, StorageUnavailable
from treadle.storage.driver_sessions import with_literals
from treadle.storage.postgres import PostgresStorage
from treadle_testkit.shows import shows

TEXT = 'Grüße, 日本, €, it\'s \\ "$1" %s {x}'


@pytest.fixture
async def storage() -> AsyncIterator[PostgresStorage]:
    with support.a_schema() as schema:
        made = PostgresStorage(support.url_of(schema))
        await made.open()
        yield made
        await made.close()


def connected(**options: Any) -> Any:
    return psycopg2.connect(support.postgres.url(), **options)


@shows("a text given to psycopg2 is never read as SQL")
@pytest.mark.parametrize("strings", ["on", "off"])
def test_no_text_is_read_as_sql(strings: str) -> None:
    """With both meanings of a backslash in an ordinary string."""
    signs = ["'", "\\", "$1", "%s", "a", "ü", '"', "\n", ";--"]
    texts = ["".join(each) for each in itertools.product(signs, repeat=3)]
    with closing(connected()) as raw, raw.cursor() as cursor:
        cursor.execute(f"SET standard_conforming_strings = {strings}")
        cursor.execute(with_literals("SELECT ARRAY[" + ",".join(f"${n + 1}" for n in range(len(texts))) + "]", texts))
        assert cursor.fetchall() == [(texts,)]
        cursor.execute(with_literals("SELECT $1::float8, $2::boolean, $3::text, $4::int, '$'", [1e300, True, None, -3]))
        assert cursor.fetchall() == [(1e300, True, None, -3, "$")]
    with pytest.raises(ValueError, match="NUL"):
        with_literals("SELECT $1", ["a\0b"])


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII", "WIN1252"])
async def test_texts_in_every_encoding(storage: PostgresStorage, encoding: str) -> None:
    """Also texts that the connection's own encoding lacks. Its encoding is the same afterwards."""
    specs = [job("plain", payload=f"{TEXT}\x1a\0"), job("keyed", payload=TEXT, key=TEXT, labels=(TEXT,))]
    with closing(connected(cursor_factory=psycopg2.extras.DictCursor)) as raw:
        raw.set_client_encoding(encoding)
        for spec in specs:
            [row] = await storage.within(raw).enqueue([spec])
            assert row.job == spec
        [held] = await storage.within(raw).enqueue([job("again", key=TEXT)])
        assert held.job == specs[1]
        with raw.cursor() as cursor:
            cursor.execute("SHOW client_encoding")
            assert cursor.fetchone()[0] == encoding
        raw.commit()
    found = await storage.get(["plain", "keyed"])
    assert [row and row.job for row in found] == specs


@shows("a psycopg2 connection that is closed, asynchronous, prepared or commits by itself is refused")
async def test_connections_that_cannot_be_used(storage: PostgresStorage) -> None:
    async def refused(raw: Any, words: str) -> None:
        with pytest.raises(BadSession, match=words):
            await storage.within(raw).enqueue([job("a")])

    with closing(connected()) as raw:
        raw.autocommit = True
        await refused(raw, "is in autocommit mode")
        with raw.cursor() as cursor:
            cursor.execute("BEGIN")
            await storage.within(raw).enqueue([job("begun")])
            cursor.execute("COMMIT")
        raw.autocommit = False
        with raw.cursor() as cursor, pytest.raises(psycopg2.Error):
            cursor.execute("SELECT nonsense")
        await refused(raw, "failed: roll it back")
    await refused(raw, "closed")
    with closing(connected()) as raw:
        raw.tpc_begin(raw.xid(1, "shop", "jobs"))
        await storage.within(raw).enqueue([job("prepared")])
        raw.tpc_prepare()
        await refused(raw, "prepared")
        raw.tpc_rollback()
    with closing(connected(async_=1)) as raw:
        await refused(raw, "async=1")
    assert [row and row.id for row in await storage.get(["begun", "prepared"])] == ["begun", None]


async def test_a_lost_server_is_an_outage(storage: PostgresStorage) -> None:
    with closing(connected()) as raw:
        await storage.within(raw).enqueue([job("a")])
        support.admin().execute("SELECT pg_terminate_backend(%s, 5000)", (raw.info.backend_pid,))
        with pytest.raises(StorageUnavailable, match=r"terminat|closed"):
            await storage.within(raw).enqueue([job("b")])
