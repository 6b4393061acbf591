"""Many consecutive calls of prune each begin where the last one stopped, and still every expired row is deleted."""

from __future__ import annotations

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import done, job
from treadle.core.model import Claim
from treadle.storage.postgres import PostgresStorage, maintenance
from treadle.testing.clock import HandClock


@pytest.fixture(autouse=True)
def one_row_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MANY", 1)


async def end(storage: PostgresStorage, clock: HandClock, *ids: str) -> None:
    """End the jobs one after the other, a second between them; each is kept for a minute."""
    for id in ids:
        await storage.enqueue([job(id, keep=0.0)])
        ask = Claim(worker=f"w#{id}", queues=(("default", 1),), limit=1)
        await storage.settle([done(row) for row in (await storage.claim(ask)).records])
        clock.advance(1.0)


async def left(storage: PostgresStorage, ids: str) -> str:
    return "".join(row.id for row in await storage.get(list(ids)) if row is not None)


async def test_prune_deletes_rows_in_the_order_of_expiry(storage: PostgresStorage, clock: HandClock) -> None:
    await end(storage, clock, *"abcdefg")
    clock.advance(100.0)
    assert [await storage.prune(2), await left(storage, "abcdefg")] == [2, "cdefg"]
    assert [await storage.prune(3), await left(storage, "abcdefg")] == [3, "fg"]
    assert [await storage.prune(3), await left(storage, "abcdefg")] == [2, ""]
    assert await storage.prune(3) == 0


async def test_all_rows_that_expire_at_one_time_are_deleted(storage: PostgresStorage, clock: HandClock) -> None:
    await storage.enqueue([job(id, keep=0.0) for id in "abcdefg"])
    ask = Claim(worker="w#1", queues=(("default", 9),), limit=9)
    await storage.settle([done(row) for row in (await storage.claim(ask)).records])
    clock.advance(100.0)
    assert [await storage.prune(2) for _ in range(5)] == [2, 2, 2, 1, 0]


async def test_a_row_that_was_locked_is_deleted_in_the_last_call(storage: PostgresStorage, clock: HandClock) -> None:
    """A row was locked when a call passed it."""
    await end(storage, clock, *"abcdefg")
    clock.advance(100.0)
    with psycopg.connect(postgres.url()) as other:
        other.execute(f"SELECT FROM {storage._address.schema}.ended WHERE id = 'b' FOR UPDATE".encode())
        assert [await storage.prune(2), await left(storage, "abcdefg")] == [2, "bdefg"]
    assert [await storage.prune(2), await left(storage, "abcdefg")] == [2, "bfg"]
    assert [await storage.prune(3), await left(storage, "abcdefg")] == [3, ""]


async def test_a_row_that_was_locked_is_deleted_before_a_last_call(
    storage: PostgresStorage, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More and more rows expire, so every call deletes a full step."""
    monkeypatch.setattr(maintenance, "IN_A_ROW", 3)
    ids = "abcdefghijklmno"
    await end(storage, clock, *ids)
    clock.advance(100.0)
    with psycopg.connect(postgres.url()) as other:
        other.execute(f"SELECT FROM {storage._address.schema}.ended WHERE id = 'a' FOR UPDATE".encode())
        assert [await storage.prune(2), await left(storage, ids)] == [2, "adefghijklmno"]
    assert [await storage.prune(2) for _ in range(4)] == [2] * 4
    assert "a" not in await left(storage, ids)
    assert len(await left(storage, ids)) == 5


async def test_rows_that_expire_before_the_last_position_are_deleted(
    storage: PostgresStorage, clock: HandClock
) -> None:
    """The server's clock was set back meanwhile."""
    await end(storage, clock, *"abc")
    clock.advance(100.0)
    assert await storage.prune(3) == 3
    clock.advance(-120.0)
    await end(storage, clock, "d")
    clock.advance(130.0)
    assert await storage.prune(3) == 1
