"""Random calls to the memory storage and to Redis, on one clock moved by hand: the same answers, the same rows.

Above all for jobs with limits and lanes only: their rows are assembled from bytes, without the per-row path in Lua.
"""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from tests.servers import valkey
from tests.storage.play import Play, same, seeds
from treadle.storage.memory import MemoryStorage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock

_names = (f"m{os.getpid()}-{n}" for n in itertools.count())


async def play(seed: int, plainly: bool, steps: int) -> None:
    clock = HandClock()
    memory, redis = MemoryStorage(clock), RedisStorage(valkey.url(), ns=next(_names), now=clock)
    await redis.open()
    try:
        game = Play(seed, clock)
        if plainly:
            game.taste |= dict.fromkeys(("after", "key", "delay", "root", "aging", "rest"), 0.0)
            game.bound = 0.0
        await same(game, clock, redis, memory, steps)
    finally:
        await redis.close()


@pytest.mark.parametrize("plainly", [True, False])
@pytest.mark.parametrize("seed", seeds(25))
def test_random_calls_have_the_results_of_memory(seed: int, plainly: bool) -> None:
    asyncio.run(play(seed, plainly, 100))
