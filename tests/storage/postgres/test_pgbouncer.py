"""Behind PgBouncer in transaction mode: each statement may run in another session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from tests.servers import pgbouncer
from tests.storage.postgres import support
from tests.storage.postgres.support import done, job, life
from treadle.core.model import Claim
from treadle.storage.postgres import PostgresStorage

pytestmark = pytest.mark.skipif(
    pgbouncer.binary() is None, reason="there is no pgbouncer; install it, or set TEST_PGBOUNCER_BIN"
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pgbouncer.PgBouncer(support.postgres.shared().port) as server:
        yield server.port


def url_of(port: int, schema: str, **options: object) -> str:
    direct = support.postgres.shared().port
    return support.url_of(schema, **{"prepare": "off", **options}).replace(f":{direct}/", f":{port}/")


async def test_a_pooler_without_listening_is_enough(port: int) -> None:
    """Including the creation of the schema."""
    with support.a_schema() as schema:
        storage = PostgresStorage(url_of(port, schema, listen="off"))
        await storage.open()
        for id in "abc":
            await life(storage, id)
        await asyncio.gather(*(storage.enqueue([job(f"j{n}")]) for n in range(50)))
        taken = await asyncio.gather(
            *(storage.claim(Claim(worker=f"w{n}#1", queues=(("default", 10),), limit=10)) for n in range(10))
        )
        rows = [row for claimed in taken for row in claimed.records]
        assert len({row.id for row in rows}) == len(rows)
        assert {each.status for each in await storage.settle([done(row) for row in rows])} == {"applied"}
        assert await storage.watch(["queue:default"], 0.01) == set()
        await storage.close()


async def test_the_listener_bypasses_the_pooler(port: int) -> None:
    with support.a_schema() as schema:
        direct = f"127.0.0.1:{support.postgres.shared().port}"
        storage = PostgresStorage(url_of(port, schema, listen=direct))
        await storage.open()
        watch = asyncio.create_task(storage.watch(["queue:default"], 10))
        await asyncio.sleep(0)
        await storage.enqueue([job("a")])
        assert await watch == {"queue:default"}
        await storage.close()


async def test_a_pooler_is_recognised_without_an_option(port: int) -> None:
    """Its sessions are lent to other programs, so nothing may be left in one."""
    with support.a_schema() as schema:
        storage = PostgresStorage(url_of(port, schema, prepare="auto", listen="off"))
        await storage.open()
        for id in "abc":
            await life(storage, id)
        await asyncio.gather(*(storage.enqueue([job(f"j{n}")]) for n in range(50)))
        # Sessions of the pool's three servers, with one transaction each at the same time.
        made = [await psycopg.AsyncConnection.connect(url_of(port, schema).partition("?")[0]) for _ in range(3)]
        for each in made:
            found = await each.execute(
                "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),"
                " (SELECT count(*) FROM pg_prepared_statements)"
            )
            assert await found.fetchone() == ("0", "0", 0)
        for each in made:
            await each.close()
        await storage.close()
