"""A Redis storage in a namespace of its own, for the tests that need no more."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator

import pytest

from tests.servers import valkey
from treadle.storage.redis import RedisStorage

_names = (f"r{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture
async def storage() -> AsyncIterator[RedisStorage]:
    made = RedisStorage(valkey.url(), ns=next(_names))
    await made.open()
    yield made
    await made.close()
