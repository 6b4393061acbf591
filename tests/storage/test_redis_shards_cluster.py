"""A namespace spread over the nodes of a cluster: the laws of the contract.

A script that reaches into a slot it did not name fails here.
"""

from __future__ import annotations

import itertools

import pytest

from tests.servers import cluster
from tests.storage.redis_counts import spoil
from tests.storage.shards_kit import REFUSED, expect, makes
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.run import MakeStorage, SpoilCount

pytestmark = pytest.mark.slow

_names = (f"sc{n}" for n in itertools.count())


@pytest.fixture
def spoil_count() -> SpoilCount:
    return spoil


@pytest.fixture
def make_storage(request: pytest.FixtureRequest) -> MakeStorage:
    expect(request, REFUSED)
    return makes(lambda: cluster.shared().url, _names)
