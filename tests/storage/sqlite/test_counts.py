"""The kept counts as SQLite stores them: changes as rows that are folded, and endings of several tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.storage.sqlite.support import ask, done, job, opened, sql
from treadle.core.model import State
from treadle.storage.sqlite import SqliteStorage
from treadle.storage.sqlite.counts import FOLD
from treadle.testing.clock import HandClock


async def test_changes_are_folded_and_each_reader_adds_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        for number in range(1, 2 * FOLD + 3):
            await storage.enqueue([job(f"j{number:05d}", task=f"t{number % 3}")])
            assert sum(each.queued for each in (await storage.stats()).counts) == number
            assert sql(path, "SELECT count(*) FROM count_change") == [(number % FOLD,)]
        assert sql(path, "SELECT sum(jobs) FROM job_count") == [(2 * FOLD,)]
        assert await storage.recount() == ()


async def test_a_prune_folds_and_drops_empty_groups(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", HandClock()
    storage = SqliteStorage(str(path), now=clock, synchronous="off")
    await storage.open()
    await storage.enqueue([job("a", keep=0.0)])
    await storage.settle([done(row) for row in (await storage.claim(ask())).records])
    clock.advance(61.0)
    assert await storage.prune(10) == 1
    await storage.prune(10)
    assert sql(path, "SELECT (SELECT count(*) FROM job_count) + (SELECT count(*) FROM count_change)") == [(0,)]
    await storage.close()


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "each its own"])
async def test_endings_of_several_tasks_that_are_not_all_applied_are_counted(tmp_path: Path, alike: bool) -> None:
    """Another process has ended one of the leased jobs, in the same moment and with the same outcome."""
    path, clock = str(tmp_path / "jobs.db"), HandClock()
    ours, other = (SqliteStorage(path, now=clock, synchronous="off") for _ in range(2))
    await ours.open()
    await other.open()
    await ours.enqueue([job(f"j{number}", task=f"t{number % 3}") for number in range(6)])
    rows = (await ours.claim(ask(1, 6))).records
    outcomes = [replace(done(row), result='"r"' if alike else f'"{row.job.id}"') for row in rows]
    await other.settle(outcomes[2:4])
    assert {each.status for each in await ours.settle(outcomes)} <= {"applied", "repeated"}
    found = {(each.task, each.state): each.jobs for each in (await ours.stats()).counts}
    assert found == {(f"t{number}", State.SUCCEEDED): 2 for number in range(3)}
    assert await ours.recount() == ()
    await ours.close()
    await other.close()
