"""An app on each storage, with workers that look often."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.kit import Told
from tests.servers import valkey
from treadle import App, Retry
from treadle.storage import connect
from treadle.storage.contract import Storage

_names = (f"compose{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture(params=["memory", "sqlite", "redis"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return connect("memory://")
    if request.param == "sqlite":
        return connect(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal")
    return connect(f"{valkey.url()}?ns={next(_names)}")


@pytest.fixture
async def app(storage: Storage) -> AsyncIterator[App]:
    async with App(storage=storage, random=lambda: 0.0, retry=Retry(base=0.01)) as app:
        yield app


@pytest.fixture
def told(app: App) -> Told:
    return Told(app)
