"""Fixtures for the tests of the engine: an app on each storage, including real servers.

A folder's conftest imports the fixtures it wants. To add a storage to all of them, add it to `KINDS`.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit import Spy, Told
from tests.servers import valkey
from tests.storage.postgres import support as postgres
from treadle import App
from treadle.core.clock import Clock
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.storage.redis import RedisStorage
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock

KINDS = ("memory", "sqlite", "redis", "postgres")
LASTING = ("sqlite", "redis", "postgres")  # storages that a second process can open, and that outlive a killed process

_names = (f"app{os.getpid()}-{n}" for n in itertools.count())


@contextmanager
def a_storage(kind: str, folder: Path, now: Clock | None = None) -> Iterator[Storage]:
    """An empty storage of this kind. `now` is the clock that it reads in place of its own."""
    if kind == "memory":
        yield MemoryStorage(now) if now else MemoryStorage()
    elif kind == "sqlite":
        path, mode = str(folder / "jobs.db"), "normal"
        yield SqliteStorage(path, now=now, synchronous=mode) if now else SqliteStorage(path, synchronous=mode)
    elif kind == "redis":
        yield RedisStorage(valkey.url(), ns=next(_names), now=now)
    else:
        with postgres.a_schema() as schema:
            yield PostgresStorage(postgres.url_of(schema, timeout=60), now=now)


@contextmanager
def a_url(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty storage of this kind, with its own clock."""
    if kind == "memory":
        yield "memory://"
    elif kind == "sqlite":
        yield f"sqlite:///{folder / 'jobs.db'}?synchronous=normal"
    elif kind == "redis":
        yield f"{valkey.url()}?ns={next(_names)}"
    else:
        with postgres.a_schema() as schema:
            yield postgres.url_of(schema, timeout=60)


@pytest.fixture
def clock() -> HandClock:
    """A clock that only moves by hand."""
    return HandClock()


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Iterator[Storage]:
    with a_storage(request.param, tmp_path, clock) as storage:
        yield storage


@pytest.fixture
def spy(storage: Storage) -> Spy:
    return Spy(storage)


@pytest.fixture
async def app(spy: Spy, clock: HandClock) -> AsyncIterator[App]:
    """An app on the hand clock, with random numbers that are always 0."""
    async with App(storage=spy, clock=clock, random=lambda: 0.0) as app:
        yield app


@pytest.fixture
def told(app: App) -> Told:
    return Told(app)


@pytest.fixture
def swept(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check for leftovers of the test, so that they are not found in the next test."""
    yield
    gc.collect()
    said = [each.getMessage() for when in ("setup", "call", "teardown") for each in caplog.get_records(when)]
    assert not [each for each in said if "was destroyed but it is pending" in each]
