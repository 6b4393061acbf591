from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.outbox.kit import KINDS, Data, a_database, an_app
from treadle import App

_numbers = itertools.count()


@pytest.fixture(params=KINDS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    """A database of each kind."""
    return a_database(request.param, tmp_path)


@pytest.fixture
def namespace() -> str:
    return f"outbox{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def app(data: Data, namespace: str) -> AsyncIterator[App]:
    """An open app with the tables of its outbox. No worker and no relay runs."""
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        yield app


@pytest.fixture
async def pg_app(tmp_path: Path, namespace: str) -> AsyncIterator[tuple[App, Data]]:
    """The same on PostgreSQL only."""
    data = a_database("postgresql", tmp_path)
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        yield app, data
