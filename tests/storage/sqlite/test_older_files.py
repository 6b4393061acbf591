"""A file that an older Treadle made, with jobs in every state: opened, migrated and worked off."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tests.storage.old_rules import NOW, OLD
from tests.storage.sqlite.support import ask, done, integrity, job, jobs, opened, sql
from treadle.core.model import Limit, Outcome, State
from treadle.storage.sqlite.migrate import known


def schema(path: Path) -> list[tuple[object, ...]]:
    return sql(path, "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name")


def columns(path: Path) -> list[tuple[object, ...]]:
    return sql(path, "SELECT name, type FROM pragma_table_info('job')")


def older(path: Path) -> None:
    """Take back what the migrations after the first have brought; rows are as that schema had them."""
    sql(path, "ALTER TABLE job DROP COLUMN room")
    sql(
        path,
        "UPDATE ticket SET jobs = '[' || json_extract(jobs, '$[0][0]') || ']' WHERE json_type(jobs, '$[0]') = 'array'",
    )
    sql(path, "DROP TABLE limit_fact")
    sql(path, "DELETE FROM rule")
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany("INSERT INTO rule VALUES (?, ?)", [(rule.name, msgspec.msgpack.encode(rule)) for rule in OLD])
    sql(path, "DELETE FROM migration WHERE number > 1")
    sql(path, "UPDATE meta SET value = '1' WHERE name = 'schema'")


async def test_jobs_of_every_state_are_worked_off(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.set_limits([Limit("shut", slots=0)])
        await storage.enqueue([job("won"), job("lost"), job("asked"), job("runs")])
        rows = {row.job.id: row for number in range(4) for row in (await storage.claim(ask(number, 1))).records}
        assert set(rows) == {"won", "lost", "asked", "runs"}
        await storage.settle([replace(done(rows["won"]), result='"r"')])
        await storage.settle([Outcome(id="lost", version=1, state=State.FAILED, error="e", reason="error", attempt=1)])
        await storage.settle([Outcome(id="asked", version=1, state=State.CANCELLED, reason="asked")])
        await storage.enqueue(
            [
                job("up", priority=-1),
                job("waits", after=("up",), need=1),
                job("later", delay=3600.0),
                job("keyed", key="k"),
                job("aside", limits=(("shut", 1),)),
                *jobs(20),
            ]
        )
        before = await storage.get(["won", "lost", "asked", "runs", "up", "waits", "later", "keyed", "j00000"])
    made = columns(path), schema(path)
    older(path)
    assert columns(path) != made[0]

    async with opened(path) as storage:
        assert await storage.get([row.job.id for row in before if row is not None]) == before
        repeated = await storage.claim(ask(2, 1))  # its ticket is remembered
        assert [row.job.id for row in repeated.records] == ["runs"]
        ended, outcomes = list[str](), [done(row) for row in repeated.records]
        await storage.enqueue([job("new")])
        for number in range(10, 40):
            settled, claimed = await storage.settle_claim(outcomes, ask(number, 4))
            assert {each.status for each in settled} <= {"applied"}
            ended += [out.id for out in outcomes]
            outcomes = [replace(done(row), result='"%s"' % ("x" * 40)) for row in claimed.records]
            if not outcomes:
                break
        assert sorted(ended) == sorted(["runs", "up", "waits", "keyed", "new", *(each.id for each in jobs(20))])
        left = await storage.get(["later", "aside"])
        assert [row.state for row in left if row is not None] == [State.READY, State.READY]
        assert {use.key: use for use in await storage.limits(use=False)} == NOW
        await storage.set_limits([Limit("shut", slots=1)])
        assert [row.job.id for row in (await storage.claim(ask(50, 4))).records] == ["aside"]
    assert (columns(path), schema(path)) == made
    assert sql(path, "SELECT max(number) FROM migration") == [(known()[-1][0],)]
    assert integrity(path) == "ok"


async def test_a_row_with_room_is_as_long_at_its_end_as_at_its_beginning(tmp_path: Path) -> None:
    """So that it is written over in place: its room gives way to worker, moments and result."""
    path = tmp_path / "jobs.db"
    taken = "SELECT coalesce(length(room), 0) + coalesce(length(worker), 0) + coalesce(length(result), 0) FROM job"
    async with opened(path) as storage:
        await storage.enqueue(jobs(2))
        [first, _] = sql(path, taken)
        claim = replace(ask(1, 2), worker="host.example:12345:0a1b2c#1234567")
        rows = (await storage.claim(claim)).records
        [leased, _] = sql(path, taken)
        await storage.settle([replace(done(row), result='"done"') for row in rows])
        [ended, _] = sql(path, taken)
        # a byte of the room's own length; then eight of a moment, and one each for version and state
        assert (first[0], leased[0], ended[0]) == (72, 72 - 8, 72 - 8 - 9)  # type: ignore[comparison-overlap]
        assert not sql(path, "SELECT 1 FROM job WHERE length(room) = 0")


async def test_what_outgrows_its_room_is_stored_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.enqueue(jobs(3))
        rows = (await storage.claim(replace(ask(1, 3), worker="w" * 300 + "#1"))).records
        outcomes = [replace(done(row), result='"%s"' % ("ü" * 3000 + row.job.id)) for row in rows]
        assert {each.status for each in await storage.settle(outcomes)} == {"applied"}
        assert [row and row.result for row in await storage.get([out.id for out in outcomes])] == [
            out.result for out in outcomes
        ]
    assert integrity(path) == "ok"
