"""Turns a law into a test: a storage from the fixture `make_storage`, a clock, and an event loop per test.

The suite needs no pytest plugin for coroutines.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import Any, Protocol

import pytest

from treadle.core.query_model import Kind
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock

GIVEN = ("storage", "clock", "connect", "another")  # arguments of laws that are not fixtures
Law = Callable[..., Awaitable[None]]
Connect = Callable[[], Awaitable[Storage]]
Another = Callable[[], Awaitable[Storage]]


class MakeStorage(Protocol):
    """The fixture `make_storage`: opens an empty storage; with `share`, one more connection to the latest data."""

    async def __call__(self, clock: HandClock, share: bool = False) -> Storage: ...


@pytest.fixture
def durable() -> bool:
    """Whether the data outlives the storage object."""
    return True


@pytest.fixture
def two_loops() -> bool:
    """Whether two event loops of one process may use the data at once, each with a connection of its own."""
    return True


class OpenTransaction(Protocol):
    """A transaction that a user of the storage's database opened, on a separate connection."""

    given: Any  # the value for `within=`

    async def commit(self) -> None: ...
    async def roll_back(self) -> None: ...
    async def close(self) -> None: ...


UserTransaction = Callable[[Storage], AbstractAsyncContextManager[OpenTransaction]]


@pytest.fixture
def user_transaction() -> UserTransaction:
    """`async with user_transaction(storage) as user:` opens one, and closes its connection at the end."""
    pytest.skip("this storage has no transactions")


SpoilCount = Callable[[Storage, str, str, Kind, int], Awaitable[None]]


@pytest.fixture
def spoil_count() -> SpoilCount:
    """`await spoil_count(storage, queue, task, kind, by)` changes a kept count, as no verb does."""
    pytest.skip("the kept counts of this storage cannot be changed from here")


@pytest.fixture
def speaks() -> bool:
    """Whether `watch` wakes when a topic is published."""
    return True


def tests_of(module: ModuleType) -> dict[str, Callable[..., None]]:
    """The laws of one module as plain test functions, by name."""
    return {name: as_test(law) for name, law in vars(module).items() if name.startswith("test_")}


def as_test(law: Law) -> Callable[..., None]:
    """Turn a law into a test. Its arguments are `storage`, `clock`, `connect` (opens one more connection), `another`
    (opens another, empty storage), and names of fixtures."""
    wanted = inspect.signature(law).parameters
    others = [name for name in wanted if name not in GIVEN]

    @functools.wraps(law)
    def test(make_storage: MakeStorage, **fixtures: Any) -> None:
        asyncio.run(_play(law, set(wanted), make_storage, fixtures))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in ("make_storage", *others)]
    )
    return test


async def _play(law: Law, wanted: set[str], make: MakeStorage, fixtures: dict[str, Any]) -> None:
    clock = HandClock()
    opened: list[Storage] = []

    async def connect() -> Storage:
        storage = await (make(clock, share=True) if opened else make(clock))
        opened.append(storage)
        return storage

    async def another() -> Storage:
        opened.append(await make(clock))
        return opened[-1]

    try:
        available = {"storage": await connect(), "clock": clock, "connect": connect, "another": another}
        await law(**{name: value for name, value in available.items() if name in wanted}, **fixtures)
    finally:
        for storage in reversed(opened):
            await storage.close()
