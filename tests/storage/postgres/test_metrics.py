"""Rows of metrics on PostgreSQL: concurrent calls never deadlock, and reading is bounded by the interval."""

from __future__ import annotations

import asyncio
import random

import psycopg

from tests.servers import postgres
from treadle.core.query_model import MetricsRow
from treadle.storage.postgres import PostgresStorage

START = 1_800_000_000.0


def row(at: float, source: str, span: float = 10.0) -> MetricsRow:
    return MetricsRow(at=START + at, span=span, source=source, data=b"x")


async def test_calls_that_store_the_same_rows_do_not_deadlock() -> None:
    """Each has the rows in an order of its own, and some of them remove what others store."""
    database = postgres.database()
    storages = [PostgresStorage(f"{database}?pool=2") for _ in range(4)]
    for storage in storages:
        await storage.open()
    rows = [row(10.0 * n, f"w{n % 3}") for n in range(20)]

    async def calls(storage: PostgresStorage, seed: int) -> None:
        order = random.Random(seed)
        for _ in range(15):
            some = order.sample(rows, len(rows))
            await storage.store_metrics(some[:14], some[10:])

    await asyncio.gather(*(calls(storage, 2 * n + m) for n, storage in enumerate(storages) for m in range(2)))
    await storages[0].store_metrics(rows)
    assert await storages[1].read_metrics(0, 2 * START) == rows
    for storage in storages:
        await storage.close()
    with psycopg.connect(database, autocommit=True) as beside:
        assert beside.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone() == (0,)


async def test_reading_is_bounded_by_the_interval() -> None:
    """It reads the rows that it returns and one for each length of span, not all rows."""
    database = postgres.database()
    storage = PostgresStorage(f"{database}?pool=1")
    await storage.open()
    await storage.store_metrics([row(10.0 * n, "w") for n in range(1_000)])
    await storage.store_metrics([row(60.0 * n, "", 60.0) for n in range(1_000)])
    with psycopg.connect(database, autocommit=True) as beside:

        async def read() -> int:
            await storage._pool.run("SELECT pg_stat_force_next_flush()", [])
            found = beside.execute(
                "SELECT coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'metrics'"
            ).fetchone()
            assert found is not None
            return int(found[0])

        before = await read()
        found = await storage.read_metrics(START + 5_000, START + 5_120)
        assert len(found) == 12 + 3
        assert await read() - before < 50
    await storage.close()
