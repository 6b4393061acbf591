"""Workflows that are all in one shard, which is not the first: there everything is in the order of one queue.

Laws that bring some of the workflows into the first shard would separate them from the others, so they run elsewhere.
"""

from __future__ import annotations

import itertools

import pytest

from tests.servers import valkey
from tests.storage.shards_kit import QUEUES, REFUSED, expect, makes
from treadle_testkit.conformance import durable, laws_lanes, laws_queue_order, laws_storing, run, speaks, two_loops
from treadle_testkit.conformance.run import MakeStorage

__all__ = ["durable", "speaks", "two_loops"]
globals().update(run.tests_of(laws_queue_order) | run.tests_of(laws_storing) | run.tests_of(laws_lanes))

_names = (f"sa{n}" for n in itertools.count())


@pytest.fixture
def make_storage(request: pytest.FixtureRequest) -> MakeStorage:
    expect(request, {name: why for name, why in REFUSED.items() if why == QUEUES})
    return makes(valkey.url, _names, alone=1)
