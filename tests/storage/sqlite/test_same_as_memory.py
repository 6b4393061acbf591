"""Random calls to the memory storage and to SQLite, on one clock moved by hand: the same answers, the same rows.

They reach combinations of several per-row steps that no single law has.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage.play import Crowd, Play, same, seeds
from treadle.storage.memory import MemoryStorage
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock


async def play(kind: type[Play], seed: int, path: str, steps: int) -> None:
    clock = HandClock()
    memory, sqlite = MemoryStorage(clock), SqliteStorage(path, now=clock, synchronous="off")
    await sqlite.open()
    try:
        await same(kind(seed, clock), clock, sqlite, memory, steps)
    finally:
        await sqlite.close()


@pytest.mark.parametrize("kind", [Play, Crowd])
@pytest.mark.parametrize("seed", seeds(25))
def test_random_calls_have_the_results_of_memory(kind: type[Play], seed: int, tmp_path: Path) -> None:
    asyncio.run(play(kind, seed, str(tmp_path / "jobs.db"), 150))
