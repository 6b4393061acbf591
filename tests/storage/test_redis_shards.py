"""A namespace spread over several hash tags, held to the contract, on a real Valkey."""

from __future__ import annotations

import itertools

import pytest

from tests.servers import valkey
from tests.storage.shards_kit import REFUSED, expect, makes
from treadle.testing.contract import *  # noqa: F403
from treadle.testing.contract.run import MakeStorage

_names = (f"s{n}" for n in itertools.count())


@pytest.fixture
def make_storage(request: pytest.FixtureRequest) -> MakeStorage:
    expect(request, REFUSED)
    return makes(valkey.url, _names)
