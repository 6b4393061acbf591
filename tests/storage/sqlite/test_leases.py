"""Endings that find their rows by number: all of a claim, some of it, in any order, and long after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.storage.sqlite.support import ask, done, integrity, job, jobs, sql
from treadle.core.model import Record, State
from treadle.storage.sqlite import SqliteStorage
from treadle.storage.sqlite.claim import claim
from treadle.storage.sqlite.enqueue import add_plain
from treadle.storage.sqlite.recent_leases import MOST, Leased, RecentLeases
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.testing.clock import HandClock


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "each its own"])
@pytest.mark.parametrize("turned", [slice(None), slice(None, None, -1), slice(None, None, 3), slice(2, 7)])
async def test_a_settle_ends_exactly_its_jobs(tmp_path: Path, alike: bool, turned: slice) -> None:
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


async def test_a_row_number_is_not_reused(tmp_path: Path) -> None:
    """A worker misses that its lease expired. The job ends and is pruned, and the clock is set back. By a number that
    was used again, the worker would end another job."""
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
    clock.advance(-91.0)
    await other.enqueue([job("new")])
    [new] = (await other.claim(ask(3))).records
    assert sql(tmp_path / "jobs.db", "SELECT seq, id FROM job") == [(2, "new")]
    assert new.version == late.version
    assert [each.status for each in await sleeper.settle([done(late)])] == ["stale"]
    [row] = await other.get(["new"])
    assert row is not None
    assert row.state is State.RUNNING
    assert [each.status for each in await other.settle([done(new)])] == ["applied"]
    await sleeper.close()
    await other.close()


async def test_a_row_number_of_a_failed_transaction_is_dropped(tmp_path: Path) -> None:
    """The job was stored and leased in that transaction, and its number is free again."""
    path = str(tmp_path / "jobs.db")
    one, other = (SqliteStorage(path, synchronous="off") for _ in range(2))
    await one.open()
    await other.open()

    def failing(unit: UnitOfWork) -> Generator[None, None, None]:
        yield from add_plain(unit, [job("x")])
        taken = yield from claim(unit, ask(1))
        assert taken is not None
        assert [row.job.id for row in taken.records] == ["x"]
        raise RuntimeError("no more room")

    with pytest.raises(RuntimeError):
        await one._calls.submit(failing, 1)
    await other.enqueue([job("y"), job("x")])
    assert sql(tmp_path / "jobs.db", "SELECT seq, id FROM job ORDER BY seq") == [(1, "y"), (2, "x")]
    rows = {row.job.id: row for row in (await other.claim(ask(2))).records}
    assert [each.status for each in await one.settle([done(rows["x"])])] == ["applied"]
    x, y = await other.get(["x", "y"])
    assert x is not None
    assert y is not None
    assert (x.state, y.state) == (State.SUCCEEDED, State.RUNNING)
    await one.close()
    await other.close()


def rows(*ids: str) -> list[Record]:
    return [Record(job=job(id), version=1, state=State.RUNNING) for id in ids]


def test_leases_are_taken_all_or_none() -> None:
    leases = RecentLeases()
    leases.note(rows("a", "b"), [1, 2], None)
    assert leases.take(["a", "unknown"]) is None
    assert leases.take(["b"]) == Leased([2], Counter({("default", "t"): 1}))


def test_the_last_of_very_many_leases_are_kept() -> None:
    leases = RecentLeases()
    for n in range(1, 3 * MOST, 2):
        leases.note(rows(f"j{n}", f"j{n + 1}"), [n, n + 1], ("default", "t"))
    found = leases.take([f"j{n}" for n in range(2 * MOST, 3 * MOST)])
    assert found is not None
    assert found.seqs == list(range(2 * MOST, 3 * MOST))
    assert leases.take(["j1"]) is None
    assert len(leases._young) + len(leases._old) <= 2 * MOST
