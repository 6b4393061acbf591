"""An app on each storage, with the storage's own clock; failures are retried soon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fixtures import KINDS, a_storage, told
from treadle import App, Retry
from treadle.storage.contract import Storage

__all__ = ["app", "storage", "told"]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with a_storage(request.param, tmp_path) as storage:
        yield storage


@pytest.fixture
async def app(storage: Storage) -> AsyncIterator[App]:
    async with App(storage=storage, random=lambda: 0.0, retry=Retry(base=0.01)) as app:
        yield app
