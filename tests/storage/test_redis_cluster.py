"""The Redis storage held to the contract, on a cluster of three nodes."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.servers import cluster
from treadle.storage.contract import Storage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock
from treadle.testing.contract import *  # noqa: F403
from treadle.testing.contract.run import MakeStorage

_names = (f"c{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture
def make_storage() -> MakeStorage:
    made: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(next(_names))
        storage = RedisStorage(cluster.shared().url, ns=made[-1], now=clock)
        await storage.open()
        return storage

    return make
