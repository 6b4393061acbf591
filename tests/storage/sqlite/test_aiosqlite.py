"""aiosqlite: everything runs in the thread of the connection, and the event loop runs while a lock is waited for."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest

from tests.waiting import Signal
from treadle.core.model import NewJob
from treadle.errors import BadSession
from treadle.storage.sqlite import SqliteStorage, user_transaction
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle_testkit.shows import shows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(str(path), synchronous="normal")
    await storage.open()
    yield storage
    await storage.close()


def job(id: str) -> NewJob:
    return NewJob(id=id, task="t")


async def test_only_the_thread_of_the_connection_uses_it(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    real = UnitOfWork.__init__

    def made(self: UnitOfWork, *args: object, **options: object) -> None:
        threads.append(threading.current_thread())
        real(self, *args, **options)  # type: ignore[arg-type]

    async with aiosqlite.connect(path) as db:
        monkeypatch.setattr(UnitOfWork, "__init__", made)
        await storage.within(db).enqueue([job("a")])
        monkeypatch.undo()
        assert [each is threading.current_thread() for each in threads] == [False]
        assert (await storage.within(db).get(["a"]))[0] is not None
        assert await storage.get(["a"]) == [None]
        await db.commit()
    assert (await storage.get(["a"]))[0] is not None


@shows("`within=` an aiosqlite connection leaves the event loop running while another transaction writes")
async def test_the_loop_runs_while_it_waits(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Signal().around(monkeypatch, user_transaction, "_pause")
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with aiosqlite.connect(path) as db:
            call = asyncio.create_task(storage.within(db).enqueue([job("a")]))
            await paused.until(lambda: paused.sent, "a call that waits for the lock")
            other.rollback()
            await call
            await db.commit()
    assert (await storage.get(["a"]))[0] is not None


async def test_connections_that_cannot_be_used(storage: SqliteStorage, path: Path, tmp_path: Path) -> None:
    async def refused(db: aiosqlite.Connection, words: str) -> None:
        with pytest.raises(BadSession, match=words):
            await storage.within(db).enqueue([job("a")])

    async with aiosqlite.connect(path, isolation_level=None) as db:
        await refused(db, "is in autocommit mode")
        await db.execute("BEGIN IMMEDIATE")
        await storage.within(db).enqueue([job("begun")])
        await db.execute("COMMIT")
    await refused(db, "closed")
    async with aiosqlite.connect(tmp_path / "other.db") as db:
        await refused(db, "two files")
    assert [row and row.id for row in await storage.get(["begun", "a"])] == ["begun", None]
