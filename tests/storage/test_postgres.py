"""The PostgreSQL storage: the laws of the contract, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.storage.by_hand import ByHand
from tests.storage.postgres import support
from treadle.core.query_model import Kind
from treadle.storage.contract import Storage
from treadle.storage.count_groups import LETTERS
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.property import agrees_with_memory
from treadle_testkit.conformance.run import MakeStorage, SpoilCount, UserTransaction
from treadle_testkit.shows import shows

PATIENT = 100  # seconds: a chain of two thousand takes that long on a busy machine


@pytest.fixture
def make_storage() -> Iterator[MakeStorage]:
    taken: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            taken.append(support.take_schema())
        storage = PostgresStorage(support.url_of(taken[-1], timeout=PATIENT), now=clock)
        await storage.open()
        return storage

    yield make
    for schema in taken:
        support.give_back(schema)


@pytest.fixture
def user_transaction() -> UserTransaction:
    @asynccontextmanager
    async def opened(storage: Storage) -> AsyncIterator[ByHand]:
        user = ByHand(psycopg.connect(support.postgres.url()))
        try:
            yield user
        finally:
            await user.close()

    return opened


@pytest.fixture
def spoil_count() -> SpoilCount:
    async def spoil(storage: Storage, queue: str, task: str, kind: Kind, by: int) -> None:
        assert isinstance(storage, PostgresStorage)
        letter = next(letter for letter, name in LETTERS.items() if name == kind)
        with psycopg.connect(support.postgres.url()) as db:
            table = f'"{storage._address.schema}".job_count'
            db.execute(
                f"INSERT INTO {table} AS c VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (queue, task, kind) DO UPDATE SET jobs = c.jobs + excluded.jobs",
                (queue, task, letter, by),
            )

    return spoil


@pytest.mark.slow
@shows("the PostgreSQL storage answers random calls as the memory storage does")
def test_random_calls_agree_with_memory() -> None:
    taken: list[str] = []

    async def make(clock: HandClock) -> Storage:
        if taken:
            support.give_back(taken.pop())
        taken.append(support.take_schema())
        storage = PostgresStorage(support.url_of(taken[-1]), now=clock)
        await storage.open()
        return storage

    agrees_with_memory(make)
