"""Endings that find their rows by number: all of a claim, some of it, in any order, and long after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.storage.sqlite.support import ask, done, integrity, job, jobs, sql
from treadle.model import State
from treadle.storage.sqlite import SqliteStorage
from treadle.storage.sqlite.leases import Leases
from treadle.testing.clock import HandClock


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "each its own"])
@pytest.mark.parametrize("turned", [slice(None), slice(None, None, -1), slice(None, None, 3), slice(2, 7)])
async def test_exactly_those_named_end(tmp_path: Path, alike: bool, turned: slice) -> None:
    storage = SqliteStorage(str(tmp_path / "jobs.db"), synchronous="off")
    await storage.open()
    await storage.enqueue(jobs(10))
    rows = list((await storage.claim(ask(1, 10))).records)
    outcomes = [replace(done(row), result='"r"' if alike else f'"of {row.job.id}"') for row in rows]
    first, rest = outcomes[turned], [out for out in outcomes if out not in outcomes[turned]]
    for some in (first, rest):
        if some:
            assert {each.status for each in await storage.settle(some)} == {"applied"}
        ended = {out.id: out.result for out in (first if some is first else outcomes)}
        for row in await storage.get([row.job.id for row in rows]):
            assert row is not None
            assert row.state is (State.SUCCEEDED if row.job.id in ended else State.RUNNING)
            assert row.result == ended.get(row.job.id)
    await storage.close()
    assert integrity(tmp_path / "jobs.db") == "ok"


async def test_a_number_given_to_another_row_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """A worker sleeps through the loss of its lease; meanwhile the job ended and was pruned, its number used again."""
    clock, path = HandClock(), str(tmp_path / "jobs.db")
    sleeper, other = (SqliteStorage(path, now=clock, synchronous="off") for _ in range(2))
    await sleeper.open()
    await other.open()
    await sleeper.enqueue([job("old")])
    [late] = (await sleeper.claim(ask(1))).records
    clock.advance(ask().lease + 1.0)
    [taken] = (await other.claim(ask(2))).records
    assert [each.status for each in await other.settle([replace(done(taken), keep=0)])] == ["applied"]
    clock.advance(61.0)
    assert await other.prune(10) == 1
    await other.enqueue([job("new")])
    [new] = (await other.claim(ask(3))).records
    assert sql(tmp_path / "jobs.db", "SELECT seq, id FROM job") == [(1, "new")]
    assert new.version == late.version
    assert [each.status for each in await sleeper.settle([done(late)])] == ["stale"]
    [row] = await other.get(["new"])
    assert row is not None
    assert row.state is State.RUNNING
    assert [each.status for each in await other.settle([done(new)])] == ["applied"]
    await sleeper.close()
    await other.close()


@pytest.mark.parametrize("noted", [0.0, 10.0, 29.0, 31.0, 59.0])
@pytest.mark.parametrize("turns", [(), (5.0, 30.0, 55.0), (29.9, 59.9, 89.9)])
def test_what_was_leased_is_known_for_half_a_minute_and_never_for_a_whole_one(
    noted: float, turns: tuple[float, ...]
) -> None:
    for age in (0.0, 1.0, 29.0, 30.0, 45.0, 60.0, 75.0, 1000.0, -1.0):
        leases = Leases()
        leases.note(["first"], [1], 1000.0)
        leases.note(["it"], [7], 1000.0 + noted)
        for turn in turns:
            if noted < turn < noted + age:
                leases.note(["another"], [8], 1000.0 + turn)
        found = leases.take(["it"], 1000.0 + noted + age)
        if 0 <= age < 30:
            assert found == [7]
        if not -1 <= age < 60:
            assert found is None
        assert leases.take(["it"], 1000.0 + noted + age) is None  # once


def test_all_of_them_or_none() -> None:
    leases = Leases()
    leases.note(["a", "b"], [1, 2], 5.0)
    assert leases.take(["a", "unknown"], 6.0) is None
    assert leases.take(["b"], 6.0) == [2]
