"""Glances and bounded pages read a bounded number of rows, whatever there is and whatever the planner estimates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import done, job
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Outcome, Record, State
from treadle.core.query_model import Query
from treadle.storage.postgres import PostgresStorage

MANY = 1_000  # rows of each kind
BOUND = 10
FEW = 200  # rows that a look may read: those it counts or returns, of each kind and queue

# Rows of indexes and rows of tables that were read without one. `heap` counts dead rows too, which vacuums remove.
READ = """
SELECT (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE schemaname = 'treadle')
    + (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE schemaname = 'treadle'
        AND relname IN ('job', 'ended', 'slot', 'label', 'edge'))
"""


class Looks:
    """One connection, and a count of the rows that its looks read."""

    def __init__(self, storage: PostgresStorage, beside: psycopg.Connection[Any]) -> None:
        self.storage, self._beside = storage, beside

    async def _read(self) -> int:
        await self.storage._pool.run("SELECT pg_stat_force_next_flush()", [])
        found = self._beside.execute(READ).fetchone()
        assert found is not None
        return int(found[0])

    async def find(self, **options: Any) -> tuple[int, list[str]]:
        """The rows that a bounded page read, and the ids that it returned."""
        before = await self._read()
        page = await self.storage.find(Query(**{"limit": BOUND, "scan": BOUND, **options}))
        return await self._read() - before, [row.job.id for row in page.records]

    async def of(self, look: Callable[[PostgresStorage], Awaitable[Any]]) -> int:
        before = await self._read()
        await look(self.storage)
        return await self._read() - before


async def _settle(storage: PostgresStorage, queue: str, state: State) -> None:
    ask = Claim(worker=f"w#{queue}", queues=((queue, MANY),), limit=MANY)
    rows = (await storage.claim(ask)).records
    assert len(rows) == MANY
    await storage.settle([_ended(row, state) for row in rows])


def _ended(row: Record, state: State) -> Outcome:
    return done(row) if state is State.SUCCEEDED else Outcome(id=row.id, version=row.version, state=state, error="E")


async def _fill(storage: PostgresStorage, beside: psycopg.Connection[Any]) -> None:
    await storage.open()
    for table in ("job", "ended"):
        beside.execute(f"ALTER TABLE treadle.{table} SET (autovacuum_enabled = off)".encode())
        beside.execute(f"ANALYZE treadle.{table}".encode())

    async def fill(name: str, **options: Any) -> None:
        await storage.enqueue([job(f"{name}{n:06}", **{"queue": name, **options}) for n in range(MANY)])

    await storage.set_limits([Limit("shut", slots=0), Limit("queue:line", slots=10_000)])
    await fill("won")
    await _settle(storage, "won", State.SUCCEEDED)
    await fill("lost")
    await _settle(storage, "lost", State.FAILED)
    await fill("line", labels=("all",), root="tree", parent="tree")
    await fill("later", delay=1e6)
    await fill("aside", limits=(("shut", 1),))
    await storage.claim(Claim(worker="w#aside", queues=(("aside", MANY),), limit=MANY))
    await fill("waits", task="")
    await fill("dies", queue="line", deadline=1e6, priority=1)
    await storage.enqueue([job("run", queue="busy"), job("own", queue="treadle", task="treadle.own", delay=1e6)])
    await storage.enqueue([job("rare", queue="line", labels=("rare",), parent="rare", root="rare")])
    await storage.claim(Claim(worker="w#busy", queues=(("busy", 1),), limit=1, lease=1e6))
    await storage.close()


@pytest.fixture(scope="module")
def filled() -> str:
    """A database with many rows of each kind, whose dead rows are vacuumed and whose statistics are those of empty
    tables."""
    database = postgres.database()
    with psycopg.connect(database, autocommit=True) as beside:
        asyncio.run(_fill(PostgresStorage(f"{database}?pool=1"), beside))
        beside.execute("VACUUM treadle.job, treadle.ended")
    return database


@pytest.fixture
async def looks(filled: str) -> AsyncIterator[Looks]:
    storage = PostgresStorage(f"{filled}?pool=1")
    with psycopg.connect(filled, autocommit=True) as beside:
        await storage.open()
        await storage.find(Query(limit=1, scan=1))  # the catalogue is read once
        yield Looks(storage, beside)
        await storage.close()


@pytest.mark.parametrize("look", [PostgresStorage.stats, PostgresStorage.glance, PostgresStorage.limits])
async def test_statistics_read_the_kept_counts(looks: Looks, look: Callable[[PostgresStorage], Awaitable[Any]]) -> None:
    """Of jobs, they read one for each queue and priority, and the running ones."""
    assert await looks.of(look) < FEW
    assert await looks.of(look) < FEW


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, ["rare", "run", "own"]),
        ({"order": "oldest"}, []),
        ({"order": "oldest", "task": "none"}, []),
        ({"task": "none"}, []),
        ({"state": (State.RUNNING,)}, ["run"]),
        ({"order": "started"}, ["run"]),
        ({"ready": "blocked"}, []),
        ({"ready": "scheduled"}, []),
        ({"state": (State.WAITING,)}, []),
        ({"state": (State.CANCELLED,)}, []),
        ({"order": "ended", "state": (State.FAILED,)}, [f"lost{n:06}" for n in range(BOUND)]),
        ({"order": "ended", "state": (State.FAILED, State.CANCELLED), "queue": "won"}, []),
        ({"order": "ended"}, [f"lost{n:06}" for n in range(BOUND)]),
        ({"order": "due", "ready": "scheduled"}, [f"later{n:06}" for n in range(BOUND)]),
        ({"order": "due", "state": (State.RUNNING,)}, ["run"]),
        ({"order": "queue", "queue": "line"}, [f"dies{n:06}" for n in range(BOUND)]),
        ({"order": "queue", "ahead_of": "line000002", "count": True, "limit": 0}, []),
        ({"queue": "treadle"}, ["own"]),
        ({"queue": "treadle", "order": "due"}, ["own"]),
        ({"task": "treadle.own"}, ["own"]),
        ({"parent": "rare"}, ["rare"]),
        ({"root": "rare"}, ["rare"]),
        ({"label": "rare"}, ["rare"]),
        ({"ids": ("rare", "run", "won000003")}, ["rare", "run", "won000003"]),
        ({"label": "all"}, []),
        ({"parent": "tree"}, []),
        ({"root": "tree"}, []),
    ],
)
async def test_a_bounded_page(looks: Looks, options: dict[str, Any], rows: list[str]) -> None:
    read, found = await looks.find(**options)
    assert read < FEW
    assert found[: len(rows)] == rows


async def test_the_next_page_of_a_queue(looks: Looks) -> None:
    """It begins behind the cursor, and does not read what is in front of it."""
    page = await looks.storage.find(Query(order="queue", queue="line", limit=1_500))
    read, found = await looks.find(order="queue", queue="line", cursor=page.cursor)
    assert found == [f"line{n:06}" for n in range(500, 500 + BOUND)]
    assert read < FEW


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_a_time_of_creation_is_found_at_once(looks: Looks, order: str) -> None:
    """The rows outside the interval are not looked at."""
    [own] = await looks.storage.get(["own"])
    assert own is not None
    read, found = await looks.find(order=order, since=own.created_at, before=own.created_at + 1e-6)
    assert sorted(found) == ["own", "run"]
    assert read < FEW


@pytest.mark.parametrize(
    "options",
    [
        {"order": "queue"},
        {"order": "queue", "queue": "line"},
        {"order": "queue", "ahead_of": "rare"},
        {"order": "newest"},
        {"order": "ended", "state": (State.FAILED, State.CANCELLED)},
        {"order": "due"},
    ],
)
async def test_a_full_page_ends_the_look(looks: Looks, options: dict[str, Any]) -> None:
    """The bound is far away, and so are the rows behind the page; also with a cursor."""
    page = await looks.storage.find(Query(limit=BOUND, scan=MANY, **options))
    assert len(page.records) == BOUND
    assert (await looks.find(scan=MANY, **options))[0] < FEW
    read, found = await looks.find(scan=MANY, cursor=page.cursor, **options)
    assert len(found) == BOUND
    assert read < FEW


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "queue"},
        {"order": "queue", "state": (State.READY,)},
        {"order": "queue", "state": (State.READY, State.FAILED), "queue": "line"},
        {"order": "queue", "ready": "queued"},
    ],
)
async def test_the_first_page_without_a_bound(looks: Looks, options: dict[str, Any]) -> None:
    """The newest jobs, and the first ones of the queues, need no bound to be cheap."""
    read, found = await looks.find(scan=None, **options)
    assert len(found) == BOUND
    assert read < FEW
