"""Failures: processes that die, disks that fill, locks that are held, callers that are cancelled, calls that raise."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Generator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.storage.sqlite.support import ask, child, done, integrity, job, jobs, line, opened, size, sql, tell
from tests.waiting import Signal, each_turn, turn
from treadle.core.model import State
from treadle.errors import BadOption, KeyHeld, Locked, StorageError, StorageFull, UnknownUpstream
from treadle.storage.sqlite import SqliteStorage, checkpoint, lockfile, shared_transaction, user_transaction
from treadle.storage.sqlite.checkpoint import is_long
from treadle.storage.sqlite.enqueue import add_plain, enqueue
from treadle.storage.sqlite.lockfile import LockFile
from treadle.storage.sqlite.unit_of_work import UnitOfWork

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_process_killed_while_writing_loses_no_acknowledged_job(tmp_path: Path, seed: int) -> None:
    """Every acknowledged job is stored, the file is whole, and the next process continues."""
    dice, path = random.Random(seed), tmp_path / "jobs.db"
    body = """
        async def write(name):
            for number in range(100_000):
                ids = [f"{name}-{number}-{n}" for n in range(1 + number % 3)]
                await storage.enqueue([NewJob(id=id, task="t") for id in ids])
                say("stored", *ids)
                if number % 4 == 0:
                    claim = Claim(worker=f"{name}#{number}", queues=(("default", 3),), limit=3)
                    rows = (await storage.claim(claim)).records
                    outs = [Outcome(id=r.job.id, version=r.version, state=State.SUCCEEDED) for r in rows]
                    await storage.settle(outs)
                    say("ended", *[out.id for out in outs])
        await asyncio.gather(*[write(f"{os.getpid()}-{n}") for n in range(8)])
    """
    stored, ended = set[str](), set[str]()
    for _ in range(3):
        with child(path, body) as one, child(path, body) as two:
            for process in (one, two):
                assert line(process).startswith("stored")
            for process in (one, two):
                for _ in range(dice.randint(1, 300)):
                    line(process)
                process.send_signal(signal.SIGKILL)
            for process in (one, two):
                assert process.stdout is not None
                said = process.stdout.read()
                for words in said[: said.rfind("\n") + 1].splitlines():  # the last line may be cut short
                    {"stored": stored, "ended": ended}[words.split()[0]].update(words.split()[1:])
        assert integrity(path) == "ok"
    states = dict(sql(path, "SELECT id, state FROM job"))
    assert stored, "no job was acknowledged"
    assert stored <= states.keys()
    assert {states[id] for id in ended} <= {3}
    assert sql(path, "SELECT count(*) FROM job LEFT JOIN body USING (seq) WHERE body IS NULL") == [(0,)]


def test_the_disk_is_full(tmp_path: Path) -> None:
    """Each call raises StorageFull, acknowledged jobs stay, and with room again the same storage continues."""
    path = tmp_path / "jobs.db"
    body = """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        await storage.enqueue([NewJob(id="first", task="t")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        stored = refused = 0
        async def one(n):
            await storage.enqueue([NewJob(id=f"j{n}", task="t", payload="x" * 3_000)])
        for n in range(0, 400, 4):
            for answer in await asyncio.gather(*[one(n + m) for m in range(4)], return_exceptions=True):
                if isinstance(answer, (StorageFull, StorageUnavailable)):
                    refused += 1
                elif answer is None:
                    stored += 1
                else:
                    say("unexpected", repr(answer))
        found = [row for row in await storage.get([f"j{n}" for n in range(400)]) if row]
        say(stored > 0, refused > 0, stored == len(found))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await one(1000)
        say(len((await storage.claim(Claim(worker="w#1", queues=(("default", 500),), limit=500))).records) - stored)
    """
    with child(path, body) as process:
        assert [line(process), line(process)] == ["True True True", "2"]
    assert integrity(path) == "ok"


async def test_a_full_disk_has_its_own_error(tmp_path: Path) -> None:
    """SQLITE_FULL is StorageFull, and the other calls of the group are made one by one."""
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue(jobs(1))
        db = storage._file.db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 20}")
        large = [storage.enqueue([job(f"large{n}", payload="x" * 300_000)]) for n in range(2)]
        small = [storage.enqueue([job(f"small{n}")]) for n in range(2)]
        answers = await asyncio.gather(*large, *small, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StorageFull, StorageFull, list, list]
        db.execute("PRAGMA max_page_count = 1000000")
        assert await storage.enqueue([job("large0", payload="x" * 300_000)])


async def test_the_mistake_of_one_call_fails_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue([job("holder", key="k")])
        answers = await asyncio.gather(
            storage.enqueue([job("a")]),
            storage.enqueue([job("b"), job("c", after=("nobody",))]),
            storage.enqueue([job("d", key="k", key_conflict="raise")]),
            storage.enqueue([job("e", priority=2**70)]),
            storage.enqueue([job("f", payload="\ud800")]),
            storage.enqueue([job("g")]),
            return_exceptions=True,
        )
        kinds = [type(answer) for answer in answers]
        assert kinds == [list, UnknownUpstream, KeyHeld, BadOption, BadOption, list]
        found = await storage.get(["a", "b", "c", "d", "e", "f", "g"])
        assert [row is not None for row in found] == [True, False, False, False, False, False, True]


@pytest.mark.parametrize("odd", [{"key": "k\0a"}, {"id": "x\0", "lane": "l"}, {"id": "x\0"}])
async def test_an_insert_without_a_row_raises(tmp_path: Path, odd: dict[str, str]) -> None:
    """A job that SQLite's JSON does not find again is an error: a body without its job would make every later insert
    fail."""
    async with opened(tmp_path / "jobs.db") as storage:
        store = add_plain if len(odd) == 1 and "id" in odd else enqueue
        first, second = (job(**{"id": id, **odd}) for id in "ab")
        await storage._calls.submit(lambda unit: store(unit, [first]))
        [kept] = storage._file.db.execute("""SELECT value = 'x' || char(0) FROM json_each('["x\\u0000"]')""").fetchone()
        with nullcontext() if kept else pytest.raises(StorageError):  # newer versions of SQLite keep the character
            await storage._calls.submit(lambda unit: store(unit, [second]))
        assert await storage.enqueue([job("c"), job("d")])
        rows, bodies = storage._file.db.execute(
            "SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM body)"
        ).fetchone()
        assert rows == bodies == 3


async def test_all_or_nothing_over_many_turns(tmp_path: Path) -> None:
    """100,000 jobs in one call: the loop runs meanwhile, and an error at the end leaves no row."""
    async with opened(tmp_path / "jobs.db") as storage:
        many = jobs(20_000)
        asked = asyncio.ensure_future(storage.enqueue([*many, job("bad", after=("nobody",))]))
        turns = 0
        async for _ in each_turn(lambda: not asked.done()):
            turns += 1
            assert await storage.get(["j00000"]) == [None]
        assert isinstance(asked.exception(), UnknownUpstream)
        assert turns > 3
        assert await storage.get(["j00000", "j19999"]) == [None, None]
        assert len(await storage.enqueue(many)) == 20_000


@pytest.mark.parametrize("synchronous", ["full", "normal"])
async def test_a_cancelled_call_affects_no_other(tmp_path: Path, synchronous: str) -> None:
    """A cancelled call is carried out or not, and does not affect any other call."""
    dice = random.Random(1)
    async with opened(tmp_path / "jobs.db", synchronous) as storage:
        for round in range(60):
            ids = [[f"{round}-{n}-{m}" for m in range(3)] for n in range(9)]
            asked: list[Any] = [storage.enqueue([job(id) for id in each]) for each in ids]
            calls = [asyncio.ensure_future(call) for call in (*asked, storage.claim(ask(round, 2)))]
            await turn(dice.randint(0, 4))
            leaving = dice.sample(range(10), 4)
            for number in leaving:
                calls[number].cancel()
            await asyncio.wait(calls)
            for n in range(9):
                rows = await storage.get(ids[n])
                assert len({row is None for row in rows}) == 1
                assert n in leaving or rows[0] is not None
        assert len(await storage.enqueue([job("last")])) == 1


MIDDLE = 5  # turns of the loop, of many more that storing takes


async def test_the_loop_ends_in_the_middle(tmp_path: Path) -> None:
    """asyncio.run cancels the calls in progress: the lock is released and the file is whole."""
    path = tmp_path / "jobs.db"

    async def leave() -> None:
        storage = SqliteStorage(str(path))
        await storage.open()
        asked = asyncio.ensure_future(storage.enqueue(jobs(50_000)))
        await turn(MIDDLE)
        assert not asked.done()
        asked.cancel()
        left.append(storage)

    left: list[SqliteStorage] = []
    await asyncio.to_thread(asyncio.run, leave())
    file = left[0]._file  # its loop is gone, so it cannot be closed as usual; 3.13 warns about connections left open
    for each in (file.db, file.look, file.search):
        each.close()
    async with opened(path) as storage:
        assert await storage.get(["j00000"]) == [None]
        assert len(await storage.enqueue([job("a")])) == 1


async def test_a_lock_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds it: the loop continues, and the call is done when it is let go."""
    waits = Signal().around(monkeypatch, shared_transaction, "begin_patiently")
    path = tmp_path / "jobs.db"
    body = """
        assert storage._file.lock.try_lock()
        storage._file.db.execute("BEGIN IMMEDIATE")
        say("locked")
        sys.stdin.readline()
        storage._file.db.execute("COMMIT")
        storage._file.lock.unlock()
        sys.stdin.readline()
    """
    async with opened(path) as storage:
        with child(path, body) as process:
            assert line(process) == "locked"
            before = waits.sent
            asked = [asyncio.ensure_future(storage.enqueue([job(f"a{n}")])) for n in range(3)]
            await waits.until(lambda: waits.sent > before, "a call that waits for the lock")
            assert not any(each.done() for each in asked)
            assert await storage.get(["a0"]) == [None]  # reading needs no lock
            tell(process)
            assert [len(each) for each in await asyncio.gather(*asked)] == [1, 1, 1]
            tell(process)


async def test_an_open_transaction_that_writes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has one writer. A call gives up in the end, and names the process where the system lists locks."""
    monkeypatch.setattr(lockfile, "WAIT", 0.05)
    monkeypatch.setattr(user_transaction, "WAIT", 0.05)
    async with opened(tmp_path / "jobs.db") as storage:
        with closing(sqlite3.connect(storage.path)) as other:
            await storage.within(other).enqueue(jobs(1))
            with pytest.raises(Locked, match="write lock") as caught:
                await storage.enqueue([job("b")])
            assert caught.value.where == storage.path
            with closing(sqlite3.connect(storage.path)) as second, pytest.raises(Locked, match="write lock"):
                await storage.within(second).enqueue([job("c")])
            if sys.platform == "linux":
                assert caught.value.pid in (os.getpid(), None)  # None: the file system has other numbers there
                assert ("within=" in str(caught.value)) == (caught.value.pid is not None)
            other.rollback()
        assert len(await storage.enqueue([job("b")])) == 1


async def test_a_lock_that_is_never_released_is_no_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockfile, "WAIT", 0.05)
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Locked, match="write lock of the file"):
                await storage.enqueue(jobs(1))
            other.execute("COMMIT")
        assert len(await storage.enqueue(jobs(1))) == 1


async def test_calls_that_waited_together_give_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, the last of 200 calls would wait 200 times as long as the first."""
    monkeypatch.setattr(lockfile, "WAIT", 0.05)
    async with opened(tmp_path / "jobs.db") as storage:
        with closing(sqlite3.connect(storage.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            keyed = [job(f"a{number}", key=f"k{number}") for number in range(9)]
            calls = [asyncio.ensure_future(storage.enqueue([each])) for each in keyed]
            await asyncio.wait(calls[:1])  # it was alone
            await asyncio.wait(calls[1:], return_when=asyncio.FIRST_COMPLETED)
            assert all(call.done() for call in calls)
            for call in calls:
                with pytest.raises(Locked, match="write lock"):
                    await call
            other.execute("COMMIT")
        assert len(await storage.enqueue(jobs(1))) == 1


async def test_a_lock_file_whose_holder_does_nothing_stops_no_writer(tmp_path: Path) -> None:
    """Its process is stopped, or waits for the GIL, before or after its transaction."""
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        other = LockFile(storage.path + "-lock")
        assert other.try_lock()
        for number in range(2 * checkpoint.EVERY):
            assert len(await storage.enqueue([job(f"a{number}")])) == 1
        await storage._file.checkpoints.finish()
        assert len(await storage.enqueue([job("b")])) == 1
        assert not is_long(f"{storage.path}-wal", 20 * 4096), "the log is written back too"
        other.close()
        assert len(await storage.enqueue([job("c")])) == 1
        assert not storage._file.lock.is_stuck  # type: ignore[union-attr]
    assert integrity(tmp_path / "jobs.db") == "ok"


async def test_a_statement_that_fails_rolls_back_its_call_only(tmp_path: Path) -> None:
    """As for a bug or a broken disk: nothing of the call is stored, and the others of the group succeed."""
    async with opened(tmp_path / "jobs.db") as storage:

        def broken(unit: UnitOfWork) -> Generator[Any, Any, None]:
            unit.ex("DELETE FROM job")
            yield
            raise sqlite3.OperationalError("disk I/O error")

        await storage.enqueue([job("before")])
        first = asyncio.ensure_future(storage.enqueue([job("a")]))
        await asyncio.sleep(0)
        bad = storage._calls.submit(broken)
        last = storage.enqueue([job("b", delay=1.0)])
        assert len(await first) == len(await last) == 1
        with pytest.raises(sqlite3.OperationalError):
            await bad
        assert all(await storage.get(["before", "a", "b"]))


async def test_a_checkpoint_is_made_now_and_then(tmp_path: Path) -> None:
    """So the log does not grow with the number of commits."""
    path = tmp_path / "jobs.db"
    async with opened(path, "normal") as storage:
        for number in range(1_000):
            await storage.enqueue([job(f"j{number}")])
            if number % 100 == 99:
                await storage._file.checkpoints.finish()
        assert size(f"{path}-wal") < 12 * 2**20
    assert integrity(path) == "ok"


async def test_each_merged_call_gets_its_own_rows(tmp_path: Path) -> None:
    """The calls of one turn share an insert. For a known id its row is returned, and each caller gets its rows in
    order."""
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue([job("known", payload='["old"]')])
        calls = [[job(f"a{n}"), job("known", payload='["new"]'), job(f"a{n}")] for n in range(200)]
        answers = await asyncio.gather(*(storage.enqueue(call) for call in calls))
        assert [[row.job.id for row in answer] for answer in answers] == [[each.id for each in call] for call in calls]
        assert {answer[1].job.payload for answer in answers} == {'["old"]'}
        assert len((await storage.claim(ask(1, 500))).records) == 201


async def test_large_batches_are_stored_whole(tmp_path: Path) -> None:
    """Batches that need several statements, with plain and other jobs."""
    async with opened(tmp_path / "jobs.db") as storage:
        many = [job(f"j{n:04d}", **({"key": f"k{n}"} if n % 7 == 0 else {})) for n in range(2_000)]
        assert [row.job.id for row in await storage.enqueue(many)] == [each.id for each in many]
        rows = (await storage.claim(ask(1, 1_500))).records
        assert [row.job.id for row in rows] == [each.id for each in many[:1_500]]
        assert (await storage.claim(ask(1, 1_500))).records == rows  # repeated, as after a lost answer
        outs = [done(row) for row in rows]
        assert {said.status for said in await storage.settle(outs)} == {"applied"}
        assert {said.status for said in await storage.settle(outs)} == {"applied"}  # repeated, as after a lost answer
        found = await storage.get([row.job.id for row in rows])
        assert {row.state for row in found if row is not None} == {State.SUCCEEDED}
        assert len(found) == 1_500
