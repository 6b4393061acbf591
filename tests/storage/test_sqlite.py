"""The SQLite storage: the laws of the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.storage.by_hand import ByHand
from treadle.core.query_model import Kind
from treadle.storage.contract import Storage
from treadle.storage.count_groups import LETTERS
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.run import MakeStorage, SpoilCount, UserTransaction


@pytest.fixture
def make_storage(tmp_path: Path) -> MakeStorage:
    made: list[Path] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(tmp_path / f"{len(made)}.db")
        storage = SqliteStorage(str(made[-1]), now=clock, synchronous="off")
        await storage.open()
        return storage

    return make


@pytest.fixture
def user_transaction() -> UserTransaction:
    @asynccontextmanager
    async def opened(storage: Storage) -> AsyncIterator[ByHand]:
        assert isinstance(storage, SqliteStorage)
        user = ByHand(sqlite3.connect(storage.path))
        try:
            yield user
        finally:
            await user.close()

    return opened


@pytest.fixture
def spoil_count() -> SpoilCount:
    async def spoil(storage: Storage, queue: str, task: str, kind: Kind, by: int) -> None:
        assert isinstance(storage, SqliteStorage)
        letter = next(letter for letter, name in LETTERS.items() if name == kind)
        db = sqlite3.connect(storage.path)
        with db:
            db.execute(
                "INSERT OR IGNORE INTO job_count (queue, task, kind, jobs) VALUES (?, ?, ?, 0)", (queue, task, letter)
            )
            db.execute(
                "UPDATE job_count SET jobs = jobs + ? WHERE (queue, task, kind) = (?, ?, ?)", (by, queue, task, letter)
            )
        db.close()

    return spoil
