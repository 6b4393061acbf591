"""The Redis storage on a cluster of three nodes: the laws whose calls differ there.

The scripts and their answers are those of a single server, which `test_redis.py` tests with all laws. All laws run in
`test_redis_shards_cluster.py`, where a script fails unless it names its keys and finds them in one slot.
"""

from __future__ import annotations

import itertools
import os

import pytest

from tests.servers import cluster
from treadle.storage.contract import Storage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock
from treadle_testkit.conformance import (
    durable,
    laws_bounds,
    laws_handoff,
    laws_hints,
    laws_lease,
    laws_moving,
    laws_queries,
    laws_queue_order,
    laws_races,
    laws_repeats,
    laws_shedding,
    laws_storing,
    laws_versions,
    run,
    speaks,
    two_loops,
    user_transaction,
)
from treadle_testkit.conformance.run import MakeStorage

__all__ = ["durable", "speaks", "two_loops", "user_transaction"]
for _laws in (
    laws_queue_order,
    laws_storing,
    laws_versions,
    laws_lease,
    laws_repeats,
    laws_queries,
    laws_hints,
    laws_handoff,
    laws_races,
    laws_moving,
    laws_bounds,
    laws_shedding,
):
    globals().update(run.tests_of(_laws))

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
