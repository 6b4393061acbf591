"""When a checkpoint moves the log into the file, and which writers wait for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.sqlite.support import integrity, job, jobs, opened, size
from tests.waiting import Signal
from treadle.storage.sqlite import SqliteStorage, checkpoint
from treadle.storage.sqlite.checkpoint import is_long
from treadle.storage.sqlite.lockfile import LockFile

PAGE = 24 + 4096  # bytes of a page in the log

FILL = """
    INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
    SELECT randomblob(1000) FROM n
"""


def test_the_length_of_a_log_counts_from_its_last_restart(tmp_path: Path) -> None:
    """The log's file never shrinks."""
    path = tmp_path / "a.db"
    log = f"{path}-wal"
    assert not is_long(log, 0), "there is none"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 0", "CREATE TABLE t (x)", FILL):
            db.execute(statement).fetchall()
        whole = size(log)
        assert whole > 1_000 * PAGE
        assert is_long(log, 1_000 * PAGE)
        assert is_long(log, whole - PAGE)
        assert not is_long(log, whole)
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        db.execute("INSERT INTO t VALUES (1)")
        assert size(log) == whole
        assert is_long(log, 1)
        assert not is_long(log, 100 * PAGE), "the pages behind it belong to the log before"


async def test_a_log_that_was_long_once_is_not_checkpointed_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many jobs in one transaction the log's file is long, and stays so."""
    begun = list[str]()
    whole = checkpoint.sync
    monkeypatch.setattr(checkpoint, "LARGE", 2**21)
    monkeypatch.setattr(checkpoint, "sync", lambda path: (begun.append(path), whole(path)))
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        await storage.enqueue(jobs(20_000))
        assert size(f"{tmp_path}/jobs.db-wal") > 2 * checkpoint.LARGE
        for number in range(checkpoint.LOOK):  # one of these commits checks the size of the log
            await storage.enqueue([job(f"a{number}")])
        await storage._file.checkpoints.finish()
        assert len(begun) == 1
        for number in range(3 * checkpoint.LOOK):
            await storage.enqueue([job(f"b{number}")])
            await storage._file.checkpoints.finish()
        assert len(begun) == 1
    assert integrity(tmp_path / "jobs.db") == "ok"


async def test_writers_wait_for_a_disk_that_does_not_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write while the log is synced, but no more than a checkpoint moves, so the log does not grow without
    limit."""
    slow, whole = threading.Event(), checkpoint.sync
    monkeypatch.setattr(checkpoint, "sync", lambda path: (slow.wait(60), whole(path)))
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        for number in range(2 * checkpoint.EVERY):
            await storage.enqueue([job(f"a{number}")])
        waits = Signal().around(monkeypatch, checkpoint.Checkpoints, "finish")
        late = [asyncio.ensure_future(storage.enqueue([job(f"b{number}")])) for number in range(3)]
        await waits.until(lambda: waits.sent, "a writer that waits for the disk")
        assert not any(each.done() for each in late)
        slow.set()
        assert [(await each)[0].job.id for each in late] == ["b0", "b1", "b2"]
        await storage._file.checkpoints.finish()
    assert integrity(tmp_path / "jobs.db") == "ok"


async def test_a_forgotten_reader_is_waited_for_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Writers stop while a checkpoint waits for readers. One of two processes waits, then none for a while."""
    now, path = 1_000.0, tmp_path / "jobs.db"
    waited = list[str]()
    monkeypatch.setattr(checkpoint, "LARGE", 2**18)
    monkeypatch.setattr(checkpoint, "HUGE", 2**20)
    monkeypatch.setattr(checkpoint, "READERS", 1)
    monkeypatch.setattr(checkpoint.clock, "wall", lambda: now)

    async def work(storage: SqliteStorage) -> None:
        """Write enough for a checkpoint."""
        await storage.enqueue(jobs(2_000, f"a{len(waited)}{now}{id(storage)}"))
        storage._file.checkpoints._since = checkpoint.EVERY
        storage._file.checkpoints.count(storage._file.loop)
        await storage._file.checkpoints.finish()
        db = storage._file.checkpoints.db
        assert db is not None
        db.set_trace_callback(waited.append)

    def truncated() -> int:
        found = sum("TRUNCATE" in each for each in waited)
        waited.clear()
        return found

    async with opened(path) as one, opened(path) as two:
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM job").fetchone()
            for storage in (one, two, one, two):
                await work(storage)
            truncated()
            for pause in (5.0, 10.0, 20.0):  # each wait in vain doubles the pause
                for storage in (one, two, one):
                    await work(storage)
                assert truncated() == 0, "not within the pause"
                now += pause + 0.1
                await work(two)
                await work(one)
                assert truncated() == 1, "then by one of them"
        assert caplog.text.count("forgotten sqlite3 shell") == 1
        now += 1_000.0
        await work(one)
        assert truncated() == 1
        assert size(f"{path}-wal") == 0
        await work(two)
        assert LockFile(f"{path}-lock").patience() == (0.0, 0.0)
    assert integrity(path) == "ok"


async def test_a_checkpoint_moves_nothing_while_another_connection_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite before 3.51.3 may corrupt the file then. A writer that is no Treadle takes no lock file."""
    path = tmp_path / "jobs.db"
    monkeypatch.setattr(checkpoint, "READERS", 1)

    async def checkpointed(storage: SqliteStorage) -> int:
        """The size of the file after a checkpoint."""
        storage._file.checkpoints._since = checkpoint.EVERY
        storage._file.checkpoints.count(storage._file.loop)
        await storage._file.checkpoints.finish()
        return size(path)

    async with opened(path) as storage:
        for huge in (checkpoint.HUGE, 2**18):
            monkeypatch.setattr(checkpoint, "HUGE", huge)
            await storage.enqueue(jobs(2_000, f"a{huge}"))
            before = size(path)
            with closing(sqlite3.connect(path)) as shell:
                shell.execute("BEGIN IMMEDIATE")
                assert await checkpointed(storage) == before
            assert await checkpointed(storage) > before
    assert integrity(path) == "ok"
