"""The PostgreSQL storage held to the contract, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.postgres import support
from treadle.storage.contract import Storage
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock
from treadle.testing.contract import *  # noqa: F403
from treadle.testing.contract.property import agrees_with_memory
from treadle.testing.contract.run import MakeStorage


@pytest.fixture
def make_storage() -> Iterator[MakeStorage]:
    taken: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            taken.append(support.take_schema())
        storage = PostgresStorage(support.url_of(taken[-1]), now=clock)
        await storage.open()
        return storage

    yield make
    for schema in taken:
        support.give_back(schema)


def test_agrees_with_memory() -> None:
    taken: list[str] = []

    async def make(clock: HandClock) -> Storage:
        if taken:
            support.give_back(taken.pop())
        taken.append(support.take_schema())
        storage = PostgresStorage(support.url_of(taken[-1]), now=clock)
        await storage.open()
        return storage

    agrees_with_memory(make)
