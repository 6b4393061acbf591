"""The SQLite storage held to the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.storage.contract import Storage
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock
from treadle.testing.contract import *  # noqa: F403
from treadle.testing.contract.run import MakeStorage


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
