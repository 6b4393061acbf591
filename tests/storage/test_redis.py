"""The Redis storage: the laws of the contract, on a real Valkey."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.servers import valkey
from tests.storage.redis_counts import spoil
from treadle.storage.contract import Storage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.property import agrees_with_memory
from treadle_testkit.conformance.run import MakeStorage, SpoilCount
from treadle_testkit.shows import shows

_names = (f"t{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture
def spoil_count() -> SpoilCount:
    return spoil


@pytest.fixture
def make_storage() -> MakeStorage:
    made: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(next(_names))
        storage = RedisStorage(valkey.url(), ns=made[-1], now=clock)
        await storage.open()
        return storage

    return make


@pytest.mark.slow
@shows("the Redis storage answers random calls as the memory storage does")
def test_random_calls_agree_with_memory() -> None:
    async def make(clock: HandClock) -> Storage:
        storage = RedisStorage(valkey.url(), ns=next(_names), now=clock)
        await storage.open()
        return storage

    agrees_with_memory(make)
