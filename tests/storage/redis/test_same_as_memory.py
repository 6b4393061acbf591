"""Random calls to the memory storage and to Redis, on one clock moved by hand: the same answers, the same rows.

Most of all for jobs that ask for limits and lanes only: their rows are put together from bytes, past the rules in Lua.
"""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from tests.servers import valkey
from tests.storage.play import Play, said
from tests.storage.sqlite.test_same_as_memory import differing
from treadle.storage.memory import MemoryStorage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock

SEEDS = int(os.environ.get("SEEDS", "25"))
_names = (f"m{os.getpid()}-{n}" for n in itertools.count())


async def play(seed: int, plainly: bool, steps: int) -> None:
    clock = HandClock()
    memory, redis = MemoryStorage(clock), RedisStorage(valkey.url(), ns=next(_names), now=clock)
    await redis.open()
    try:
        game = Play(seed, clock)
        if plainly:
            game.taste |= dict.fromkeys(("after", "key", "delay", "root", "aging", "rest"), 0.0)
        for step in range(steps):
            call = game.next()
            expected, found = await said(call, memory), await said(call, redis)
            assert found == expected, f"step {step}: {differing(found, expected)}"
            rows = await memory.get(game.ids)
            for mine, theirs in zip(await redis.get(game.ids), rows, strict=True):
                assert mine == theirs, f"step {step}: {differing(mine, theirs)}"
            game.rows = {row.job.id: row for row in rows if row is not None}
            ours, reference = await redis.stats(), await memory.stats()
            assert ours.counts == reference.counts, step
            assert ours.limits == reference.limits, step
            clock.advance(game.dice.choice([0, 0, 0.25, 1, 1, 3, 12, 70]))
    finally:
        await redis.close()


@pytest.mark.parametrize("plainly", [True, False])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_as_memory(seed: int, plainly: bool) -> None:
    asyncio.run(play(seed, plainly, 100))
