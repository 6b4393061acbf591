"""Fixtures of the tests of durable code."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.durable.kit import Ledger

FACTORIES = ["tasks", "eager tasks"] if sys.version_info >= (3, 12) else ["tasks"]


@pytest.fixture(params=FACTORIES)
async def tasks(request: pytest.FixtureRequest) -> None:
    """Tasks of asyncio begin in the next turn of the loop, or within `create_task`."""
    if request.param == "eager tasks":
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()
