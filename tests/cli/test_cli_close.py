"""Ctrl-C during a read: the storage closes while a thread still reads."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from tests.waiting import Signal
from treadle.storage.sqlite import SqliteStorage


async def test_a_cancelled_read_ends_before_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, go, read = SqliteStorage(str(tmp_path / "jobs.db")), threading.Event(), list[object]()
    await storage.open()
    look = asyncio.create_task(
        storage._file.in_search(lambda db: (go.wait(30), read.append(db.execute("SELECT 1").fetchone())))
    )
    await asyncio.sleep(0)
    look.cancel()
    await asyncio.gather(look, return_exceptions=True)
    waits = Signal().around(monkeypatch, storage._file._searches, "shutdown")
    closing = asyncio.create_task(storage.close())
    await waits.until(lambda: waits.sent, "a close that waits for the look")
    assert not closing.done()
    go.set()
    await closing
    gc.collect()
    assert read == [(1,)]
    assert "never retrieved" not in caplog.text
