"""An app on each storage, with workers that look often."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.engine.kit import Told
from tests.servers import valkey
from tests.storage.postgres import support as postgres
from treadle import App, Retry
from treadle.storage import connect
from treadle.storage.contract import Storage

_names = (f"compose{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield connect("memory://")
    elif request.param == "sqlite":
        yield connect(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal")
    elif request.param == "redis":
        yield connect(f"{valkey.url()}?ns={next(_names)}")
    else:
        schema = postgres.take_schema()
        yield connect(postgres.url_of(schema, timeout=60))
        postgres.give_back(schema)


@pytest.fixture
async def app(storage: Storage) -> AsyncIterator[App]:
    async with App(storage=storage, random=lambda: 0.0, retry=Retry(base=0.01)) as app:
        yield app


@pytest.fixture
def told(app: App) -> Told:
    return Told(app)
