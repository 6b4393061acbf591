"""A schema that an older Treadle made, with jobs in every state: opened, migrated and worked off."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from tests.servers import postgres
from tests.storage.old_rules import NOW, OLD
from tests.storage.postgres.support import done, job
from treadle.core.model import Claim, Limit, Outcome, Record, State
from treadle.storage.postgres import PostgresStorage, migrate

RULE = """
INSERT INTO treadle.rule (name, slots, rate, per, how, burst, hold)
VALUES (%(name)s, %(slots)s, %(rate)s, %(per)s, %(how)s, %(burst)s, %(hold)s)
"""
MADE = """
SELECT c.relname, c.relkind, c.reloptions, pg_get_indexdef(c.oid),
    (SELECT array_agg((a.attname, a.atttypid, a.attnotnull)::text ORDER BY a.attnum)
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c WHERE c.relnamespace = 'treadle'::regnamespace ORDER BY c.relname
"""

# Tables that today's functions name, by the migration that makes them: an older schema has functions of its own.
LATER = {4: ("recheck", "key text")}


def shape(url: str) -> list[tuple[object, ...]]:
    """All tables and indexes, and how they are set."""
    with psycopg.connect(url) as connection:
        return connection.execute(MADE).fetchall()


def ask(number: int, limit: int) -> Claim:
    return Claim(worker=f"w#{number}", queues=(("default", limit),), limit=limit)


async def claimed(storage: PostgresStorage, number: int, limit: int = 1) -> list[Record]:
    return list((await storage.claim(ask(number, limit))).records)


@pytest.mark.parametrize("number", range(1, 3))  # those before migration 3, which takes the limits over
async def test_jobs_of_every_state_are_worked_off(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.database()
    numbers = migrate.known()
    monkeypatch.setattr(migrate, "known", lambda: numbers[:number])
    storage = PostgresStorage(url)
    await storage.open()
    assert await storage.schema() == number
    lacking = [table for since, table in LATER.items() if since > number]
    with psycopg.connect(url, autocommit=True) as connection:
        for rule in OLD:
            connection.execute(RULE, msgspec.structs.asdict(rule))
        for name, columns in lacking:
            connection.execute(f"CREATE TABLE treadle.{name} ({columns})".encode())
    await storage.enqueue([job("won"), job("lost"), job("asked"), job("runs")])
    rows = {row.id: row for n in range(4) for row in await claimed(storage, n)}
    assert set(rows) == {"won", "lost", "asked", "runs"}
    ticket = next(int(str(row.worker).rpartition("#")[2]) for row in rows.values() if row.id == "runs")
    await storage.settle(
        [
            done(rows["won"]),
            Outcome(id="lost", version=1, state=State.FAILED, error="e", reason="error", attempt=1),
            Outcome(id="asked", version=1, state=State.CANCELLED, reason="asked"),
        ]
    )
    await storage.enqueue(
        [
            job("up"),
            job("waits", after=("up",), need=1),
            job("later", delay=3600.0),
            job("keyed", key="k"),
            job("aside", limits=(("shut", 1),)),
        ]
    )
    names = ["won", "lost", "asked", "runs", "up", "waits", "later", "keyed", "aside"]
    before = await storage.get(names)
    await storage.close()
    with psycopg.connect(url, autocommit=True) as connection:
        for name, _ in lacking:
            connection.execute(f"DROP TABLE treadle.{name}".encode())
    monkeypatch.undo()

    storage = PostgresStorage(url)
    await storage.open()
    assert await storage.schema() == numbers[-1][0]
    assert await storage.get(names) == before
    again = await claimed(storage, ticket)
    assert [row.id for row in again] == ["runs"]  # its ticket is remembered
    ended = list[str]()
    outcomes = [done(row) for row in again]
    for n in range(10, 20):
        settled, found = await storage.settle_claim(outcomes, ask(n, 2))
        assert {each.status for each in settled} <= {"applied"}
        ended += [out.id for out in outcomes]
        outcomes = [done(row) for row in found.records]
    assert sorted(ended) == ["keyed", "runs", "up", "waits"]
    assert {use.key: use for use in await storage.limits(use=False)} == NOW
    await storage.set_limits([Limit("shut", slots=1)])
    assert [row.id for row in await claimed(storage, 30)] == ["aside"]
    assert [row.state for row in await storage.get(["won", "lost", "asked", "later"]) if row] == [
        State.SUCCEEDED,
        State.FAILED,
        State.CANCELLED,
        State.READY,
    ]
    await storage.close()

    fresh = postgres.database()
    storage = PostgresStorage(fresh)
    await storage.open()
    await storage.close()
    assert shape(url) == shape(fresh)
