"""Random calls to the memory storage and to PostgreSQL, on one clock moved by hand: the same answers, the same rows.

What is done for many rows by one statement there is done one by one in memory.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.storage.play import Crowd, Play, same
from tests.storage.postgres import support
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock

SEEDS = int(os.environ.get("TEST_SEEDS", "10"))


async def play(kind: type[Play], seed: int, schema: str, steps: int) -> None:
    clock = HandClock()
    memory, postgres = MemoryStorage(clock), PostgresStorage(support.url_of(schema), now=clock)
    await postgres.open()
    try:
        game = kind(seed, clock)
        # Plain ones of a call stand in line before those in lanes are placed: where age moves places, it can be seen.
        game.taste["aging"] = 0.0
        # Slots that a call frees let jobs back in at its end, since gates are locked last; in memory, before an ending
        # releases jobs. The first job of an empty lane joins at the head of the queue, where a test can see it.
        if kind is Crowd:
            game.taste["lane" if seed % 2 else "after"] = 0.0
        await same(game, clock, postgres, memory, steps)
    finally:
        await postgres.close()


@pytest.mark.parametrize("kind", [Play, Crowd])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_as_memory(kind: type[Play], seed: int) -> None:
    with support.a_schema() as schema:
        asyncio.run(play(kind, seed, schema, 100))
