"""When the log goes back into the file, and who waits for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.sqlite.support import integrity, job, jobs, opened, size
from treadle.storage.sqlite import checkpoint
from treadle.storage.sqlite.checkpoint import is_long

PAGE = 24 + 4096  # bytes of the log

FILL = """
    INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
    SELECT randomblob(1000) FROM n
"""


def test_a_log_is_as_long_as_what_was_written_since_it_began_anew(tmp_path: Path) -> None:
    """Its file stays as long as it ever was."""
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
        assert not is_long(log, 100 * PAGE), "what stands behind is of before"


async def test_a_log_that_was_long_once_is_not_moved_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many jobs in one transaction its file is long, and stays so."""
    begun = list[str]()
    whole = checkpoint.sync
    monkeypatch.setattr(checkpoint, "LARGE", 2**21)
    monkeypatch.setattr(checkpoint, "sync", lambda path: (begun.append(path), whole(path)))
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        await storage.enqueue(jobs(20_000))
        assert size(f"{tmp_path}/jobs.db-wal") > 2 * checkpoint.LARGE
        for number in range(checkpoint.LOOK):  # one of these is the look that finds it long
            await storage.enqueue([job(f"a{number}")])
        await storage._file._checkpoints.finish()
        assert len(begun) == 1
        for number in range(3 * checkpoint.LOOK):
            await storage.enqueue([job(f"b{number}")])
            await storage._file._checkpoints.finish()
        assert len(begun) == 1
    assert integrity(tmp_path / "jobs.db") == "ok"


async def test_writers_wait_for_a_disk_that_does_not_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write while the log is being synced, but no more than a checkpoint moves: the log does not run away."""
    slow, whole = threading.Event(), checkpoint.sync
    monkeypatch.setattr(checkpoint, "sync", lambda path: (slow.wait(60), whole(path)))
    async with opened(tmp_path / "jobs.db", "normal") as storage:
        for number in range(2 * checkpoint.EVERY):
            await storage.enqueue([job(f"a{number}")])
        late = [asyncio.ensure_future(storage.enqueue([job(f"b{number}")])) for number in range(3)]
        done, _ = await asyncio.wait(late, timeout=0.05)
        assert not done
        slow.set()
        assert [(await each)[0].job.id for each in late] == ["b0", "b1", "b2"]
        await storage._file._checkpoints.finish()
    assert integrity(tmp_path / "jobs.db") == "ok"
