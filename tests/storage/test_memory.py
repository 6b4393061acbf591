"""The memory storage: the laws of the contract."""

from __future__ import annotations

import pytest

from treadle.core.query_model import Kind
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.run import MakeStorage, SpoilCount


@pytest.fixture
def durable() -> bool:
    return False


@pytest.fixture
def two_loops() -> bool:
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


@pytest.fixture
def spoil_count() -> SpoilCount:
    async def spoil(storage: Storage, queue: str, task: str, kind: Kind, by: int) -> None:
        assert isinstance(storage, MemoryStorage)
        storage._tables.correct((queue, task, kind), by)

    return spoil
