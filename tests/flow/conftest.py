"""An app on each storage, real servers among them, with a clock that only moves by hand and chance that is always 0."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.kit import Spy, Told
from tests.servers import valkey
from treadle import App
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.redis import RedisStorage
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock

_names = (f"flow{os.getpid()}-{n}" for n in itertools.count())


def real_url(kind: str, folder: Path) -> str:
    """A storage of its own under its real clock."""
    if kind == "redis":
        return f"{valkey.url()}?ns={next(_names)}"
    return "memory://" if kind == "memory" else f"sqlite:///{folder / 'real.db'}"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["memory", "sqlite", "redis"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Storage:
    if request.param == "memory":
        return MemoryStorage(clock)
    if request.param == "redis":
        return RedisStorage(valkey.url(), ns=next(_names), now=clock)
    return SqliteStorage(str(tmp_path / "jobs.db"), now=clock, synchronous="normal")


@pytest.fixture
def spy(storage: Storage) -> Spy:
    return Spy(storage)


@pytest.fixture
async def app(spy: Spy, clock: HandClock) -> AsyncIterator[App]:
    async with App(storage=spy, clock=clock, random=lambda: 0.0) as app:
        yield app


@pytest.fixture
def told(app: App) -> Told:
    return Told(app)
