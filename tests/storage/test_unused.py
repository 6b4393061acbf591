"""Unused partitions of a limit and gone workers: once they no longer count, `prune` deletes every row of theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres import support
from tests.storage.postgres.support import done, job
from tests.storage.sqlite.support import sql
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Presence
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.storage.sqlite import SqliteStorage
from treadle.testing.clock import HandClock

TABLES = ("slot", "start", "recent_claim", "worker", "label", "checkpoints", "edge")

Left = Callable[[], dict[str, int]]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[tuple[Storage, Left]]:
    """A storage, and how many rows of which kind it has."""
    if request.param == "memory":
        memory = MemoryStorage(clock)
        await memory.open()
        names = ("jobs", "line", "lanes", "aside", "back", "held", "started", "rates", "opens")
        yield memory, lambda: {name: len(getattr(memory._tables, name)) for name in names}
        await memory.close()
    elif request.param == "sqlite":
        path = tmp_path / "j.db"
        file = SqliteStorage(str(path), synchronous="off", now=clock)
        await file.open()
        tables = (*TABLES, "job", "body", "bucket", "opening")
        yield file, lambda: {table: int(str(sql(path, f"SELECT count(*) FROM {table}")[0][0])) for table in tables}
        await file.close()
    else:
        with support.a_schema() as schema:
            server = PostgresStorage(support.url_of(schema), now=clock)
            await server.open()
            tables = (*TABLES, "job", "ended", "gate", "recheck", "holder", "behind")
            yield server, lambda: {table: _count(schema, table) for table in tables}
            await server.close()


def _count(schema: str, table: str) -> int:
    row = support.admin().execute(f'SELECT count(*) FROM "{schema}".{table}'.encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("how", ["slots", "window", "bucket"])
async def test_partitions_and_workers_leave_nothing_behind(
    kept: tuple[Storage, Left], clock: HandClock, how: str
) -> None:
    storage, left = kept
    rule = Limit("user", slots=1) if how == "slots" else Limit("user", rate=2, per=60.0, how=how)  # type: ignore[arg-type]
    await storage.set_limits([rule])
    for turn in range(2):
        new = [job(f"{turn}-{n}", limits=((f"user:{n}", 1),), lane=f"l{n}", keep=60.0) for n in range(40)]
        await storage.enqueue([*new, job(f"{turn}-again", limits=(("user:7", 1),), keep=60.0)])
        while rows := (await storage.claim(Claim(worker=f"w{turn}#1", queues=(("default", 99),), limit=99))).records:
            await storage.settle(list(map(done, rows)))
        await storage.heartbeat(Presence(worker=f"w{turn}"), [], 30.0)
        clock.advance(300)
    clock.advance(31 * 86_400)
    for _ in range(3):
        await storage.prune(1_000)
    assert {name: count for name, count in left().items() if count} == {}


async def test_a_gate_in_use_is_left(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL, while a transaction counts a limit, `prune` does not wait for the limit's lock and does not delete
    its row. If there are many limits, each call checks some of them."""
    monkeypatch.setattr("treadle.storage.postgres.maintenance.LIMITS", 2)
    with support.a_schema() as schema:
        storage = PostgresStorage(support.url_of(schema), now=clock)
        await storage.open()
        await storage.set_limits([Limit("user", slots=1)])
        await storage.enqueue([job(f"{n}", limits=((f"user:{n}", 1),)) for n in range(5)])
        await storage.settle(
            list(map(done, (await storage.claim(Claim(worker="w#1", queues=(("default", 9),), limit=9))).records))
        )
        with psycopg.connect(postgres.url()) as other:
            other.execute(f"SELECT FROM {schema}.gate WHERE key = 'user:1' FOR NO KEY UPDATE".encode())
            for rows in (4, 2, 1, 1):
                await storage.prune(9)
                assert _count(schema, "gate") == rows
        await storage.prune(9)
        assert _count(schema, "gate") == 0
        await storage.close()
