"""A single caller is served at once, without a turn of the loop; callers of the same turn share a transaction."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.storage.sqlite.support import ask, done, job, jobs, opened
from tests.waiting import Signal, Turns
from treadle.concurrency.spawn import begin
from treadle.core.model import Outcome, State
from treadle.errors import KeyHeld
from treadle.storage.sqlite import SqliteStorage, lockfile, shared_transaction
from treadle.storage.sqlite.lockfile import LockFile


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the time never causes a turn of the loop."""
    monkeypatch.setattr(shared_transaction, "AT_ONCE", 3600.0)


def commits(storage: SqliteStorage) -> list[str]:
    """Return a list to which each later commit is appended."""
    found = list[str]()
    storage._file.db.set_trace_callback(lambda said: found.append(said) if said == "COMMIT" else None)
    return found


@pytest.mark.usefixtures("patient")
async def test_a_single_caller_takes_no_turn_of_the_loop(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        with Turns() as turns:
            for number in range(50):
                await storage.enqueue([job(f"a{number}")])
            assert turns.count == 0
        assert (await storage.get(["a0", "a49"])).count(None) == 0


async def test_a_long_series_of_calls_gives_the_loop_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_transaction, "AT_ONCE", 0.0)
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        with Turns() as turns:
            for number in range(50):
                await storage.enqueue([job(f"a{number}")])
        assert turns.count >= 50


@pytest.mark.usefixtures("patient")
async def test_many_callers_share_a_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        found = commits(storage)

        async def caller(name: str) -> None:
            for number in range(10):
                await storage.enqueue([job(f"{name}-{number}")])

        await asyncio.gather(*(caller(f"c{number}") for number in range(40)))
        assert len(found) < 60  # 400 calls; the first may be served alone, and repeated while it is alone
        storage._file.db.set_trace_callback(None)


@pytest.mark.usefixtures("patient")
async def test_a_single_call_after_many_runs_at_once_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        await asyncio.gather(*(storage.enqueue([job(f"c{number}")]) for number in range(20)))
        for number in range(shared_transaction.CROWD + 1):
            await storage.enqueue([job(f"b{number}")])
        with Turns() as turns:
            await storage.enqueue([job("a")])
            assert turns.count == 0


@pytest.mark.usefixtures("patient")
async def test_the_whole_life_of_a_job_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        await storage.enqueue(jobs(3))
        outcomes = []
        for number in range(2):
            settled, claimed = await storage.settle_claim(outcomes, ask(number, 2))
            assert {each.status for each in settled} <= {"applied"}
            outcomes = [done(row) for row in claimed.records]
        assert [row.job.id for row in claimed.records] == ["j00002"]


async def test_an_error_is_raised_to_its_caller_only(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue([job("a", key="k")])
        with pytest.raises(KeyHeld):
            await storage.enqueue([job("b", key="k", key_conflict="raise")])
        assert len(await storage.enqueue([job("c")])) == 1


async def test_a_close_waits_for_a_call_that_waits_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waits for a lock that another process has: closing waits as well, and the job is stored."""
    async with opened(tmp_path / "jobs.db") as storage:
        other = LockFile(storage.path + "-lock")
        assert other.try_lock()
        asked = asyncio.ensure_future(storage.enqueue([job("a")]))
        await asyncio.sleep(0)
        tries = Signal().after(monkeypatch, LockFile, "try_lock")
        closing = asyncio.ensure_future(storage.close())
        await tries.again("tries of the lock", times=5)
        assert not asked.done()
        assert not closing.done()
        other.close()
        assert len(await asked) == 1
        await closing
    async with opened(tmp_path / "jobs.db") as storage:
        assert await storage.get(["a"]) != [None]


def test_the_loop_ends_before_the_rest_began(tmp_path: Path) -> None:
    """asyncio.run cancels it between its first wait and the first turn of its task: nothing is stored, and no lock is
    held."""
    path = tmp_path / "jobs.db"
    left: list[SqliteStorage] = []

    async def leave(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lockfile, "WAIT", 0.05)
        storage = SqliteStorage(str(path))
        await storage.open()
        left.append(storage)
        other = LockFile(storage.path + "-lock")
        assert other.try_lock()
        storage.enqueue([job("a")]).send(None)  # to its first wait, and the loop ends in this turn
        other.close()

    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.suppress(RuntimeError):
        asyncio.run(leave(monkeypatch))
    file = left[0]._file
    for each in (file.db, file.look, file.search):
        each.close()

    async def look() -> None:
        async with opened(path) as storage:
            assert len(await storage.enqueue([job("b")])) == 1

    asyncio.run(look())


# --- a coroutine that begins at once


async def test_a_coroutine_that_does_not_wait_needs_no_task() -> None:
    async def steps() -> None:
        return None

    assert begin(asyncio.get_running_loop(), steps()) is None


async def test_the_rest_of_a_coroutine_runs_in_a_task() -> None:
    loop, heard = asyncio.get_running_loop(), list[Any]()
    future = loop.create_future()

    async def steps() -> None:
        heard.append(await future)
        await asyncio.sleep(0)
        heard.append("turned")

    rest = begin(loop, steps())
    assert rest is not None
    future.set_result("said")
    await rest
    assert heard == ["said", "turned"]


async def test_a_task_cancelled_before_its_first_turn_is_notified() -> None:
    heard = list[str]()

    async def steps() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    rest = begin(asyncio.get_running_loop(), steps())
    assert rest is not None
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rest
    assert heard == ["cancelled"]


@pytest.mark.parametrize("shape", ["fan", "chain"])
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
async def test_one_ending_with_many_dependents_leaves_the_loop_its_turns(
    tmp_path: Path, shape: str, state: State
) -> None:
    """Also when the doomed jobs are reopened. Each is one transaction all the same."""
    count = 2_000
    first, *others = [f"j{number:05d}" for number in range(count + 1)]
    ups = [first, *others] if shape == "chain" else [first] * count
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue([job(first), *(job(id, after=(up,)) for id, up in zip(others, ups, strict=False))])
        for outcome in (state, State.READY) if state is State.FAILED else (state,):
            [row] = await storage.get([first])
            assert row is not None
            with Turns() as turns:
                [told] = await storage.settle([Outcome(id=first, version=row.version, state=outcome, reason="error")])
            assert told.status == "applied"
            if shape == "fan" or state is State.FAILED:
                assert turns.count > count // 64
