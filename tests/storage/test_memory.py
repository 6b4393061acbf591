"""The memory storage: the laws of the contract."""

from __future__ import annotations

import pytest

from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle.testing.conformance import *  # noqa: F403
from treadle.testing.conformance.run import MakeStorage


@pytest.fixture
def durable() -> bool:
    return False


@pytest.fixture
def make_storage() -> MakeStorage:
    made: list[Storage] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(MemoryStorage(clock))
        await made[-1].open()
        return made[-1]

    return make
