"""A file with a schema older than this Treadle's: it is migrated when it is opened, and its jobs run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.sqlite.support import ask, done, integrity, job, jobs, opened, sql
from treadle.core.limit_model import Limit
from treadle.core.model import Outcome, State
from treadle.errors import StorageError
from treadle.storage.sqlite import migrate


def later(monkeypatch: pytest.MonkeyPatch, script: str) -> int:
    """Make this process one that has one migration more. Return its number."""
    numbers = migrate.known()
    number = numbers[-1][0] + 1
    monkeypatch.setattr(migrate, "known", lambda: (*numbers, (number, "later", script)))
    return number


async def test_jobs_of_every_state_outlive_a_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.set_limits([Limit("shut", slots=0)])
        await storage.enqueue([job("won"), job("lost"), job("asked"), job("runs")])
        rows = {row.id: row for number in range(4) for row in (await storage.claim(ask(number, 1))).records}
        await storage.settle([done(rows["won"])])
        await storage.settle([Outcome(id="lost", version=1, state=State.FAILED, error="e", reason="error", attempt=1)])
        await storage.settle([Outcome(id="asked", version=1, state=State.CANCELLED, reason="asked")])
        await storage.enqueue(
            [
                job("up", priority=-1),
                job("waits", after=("up",), required=1),
                job("later", delay=3600.0),
                job("keyed", key="k"),
                job("blocked", limits=(("shut", 1),)),
                *jobs(20),
            ]
        )
        names = [*rows, "up", "waits", "later", "keyed", "blocked", "j00000"]
        before = await storage.get(names)
    newest = later(monkeypatch, "ALTER TABLE job ADD COLUMN colour TEXT;")

    async with opened(path) as storage:
        assert await storage.get(names) == before
        number = [row.id for row in rows.values()].index("runs")
        # the result of the earlier claim is returned again
        claimed = list((await storage.claim(ask(number, 1))).records)
        assert [row.job.id for row in claimed] == ["runs"]
        ended = list[str]()
        for turn in range(10, 40):
            settled = await storage.settle([done(row) for row in claimed])
            assert {each.status for each in settled} <= {"applied"}
            ended += [row.job.id for row in claimed]
            claimed = list((await storage.claim(ask(turn, 4))).records)
        assert sorted(ended) == sorted(["runs", "up", "waits", "keyed", *(each.id for each in jobs(20))])
        await storage.set_limits([Limit("shut", slots=1)])
        assert [row.job.id for row in (await storage.claim(ask(50, 4))).records] == ["blocked"]
    assert sql(path, "SELECT max(number) FROM migration") == [(newest,)]
    assert integrity(path) == "ok"


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.enqueue(jobs(3))
    schema = "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name"
    made, numbers = sql(path, schema), sql(path, "SELECT number FROM migration")
    with monkeypatch.context() as patch:
        later(patch, "CREATE TABLE half (a); INSERT INTO nowhere VALUES (1);")
        with pytest.raises(StorageError, match="nowhere"):
            async with opened(path):
                pass  # not reached
    assert (sql(path, schema), sql(path, "SELECT number FROM migration")) == (made, numbers)
    async with opened(path) as storage:
        assert len((await storage.claim(ask(1, 9))).records) == 3
