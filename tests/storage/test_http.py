"""The storage that speaks to a Treadle server, held to the contract; the server keeps its jobs in memory."""

from __future__ import annotations

import pytest

from tests.served import memory_url
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.testing import HandClock
from treadle.testing.contract import *  # noqa: F403
from treadle.testing.contract.property import agrees_with_memory
from treadle.testing.contract.run import MakeStorage


@pytest.fixture
def make_storage() -> MakeStorage:
    made: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(memory_url(clock))
        storage = HttpStorage(made[-1])
        await storage.open()
        return storage

    return make


def test_agrees_with_memory() -> None:
    async def make(clock: HandClock) -> Storage:
        storage = HttpStorage(memory_url(clock))
        await storage.open()
        return storage

    agrees_with_memory(make, examples=10)  # it is the memory storage that answers: this looks at the wire only
