"""Random calls to the memory storage and to PostgreSQL, on one clock moved by hand: the same answers, the same rows.

PostgreSQL does with one statement for many rows what the memory storage does row by row.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.storage.play import Crowd, Play, same, seeds
from tests.storage.postgres import support
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock


async def play(kind: type[Play], seed: int, schema: str, steps: int) -> None:
    clock = HandClock()
    memory, postgres = MemoryStorage(clock), PostgresStorage(support.url_of(schema), now=clock)
    await postgres.open()
    try:
        game = kind(seed, clock)
        # The plain jobs of a call are queued before those in lanes get positions; where aging changes positions, this
        # shows.
        game.taste["aging"] = 0.0
        # Of several faults in one call, it reports unknown upstreams before those outside the reach.
        game.bound = 0.0
        # Slots that a call frees admit blocked jobs at its end, because limits are locked last; the memory storage does
        # it before an ending releases jobs. The first job of an empty lane is queued at the head of the queue, where
        # the difference shows.
        if kind is Crowd:
            game.taste["lane" if seed % 2 else "after"] = 0.0
        await same(game, clock, postgres, memory, steps)
    finally:
        await postgres.close()


@pytest.mark.parametrize("kind", [Play, Crowd])
@pytest.mark.parametrize("seed", seeds(10))
def test_random_calls_have_the_results_of_memory(kind: type[Play], seed: int) -> None:
    with support.a_schema() as schema:
        asyncio.run(play(kind, seed, schema, 100))
