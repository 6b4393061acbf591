"""A PostgreSQL storage in a schema of its own, for the tests that need no more. Its clock is moved by hand; if the
fixture `clock` of a module returns None, it is that of the server, which does not stop while a call waits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.storage.postgres.support import a_schema, url_of
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def storage(clock: HandClock | None) -> AsyncIterator[PostgresStorage]:
    with a_schema() as schema:
        made = PostgresStorage(url_of(schema), now=clock)
        await made.open()
        yield made
        await made.close()
