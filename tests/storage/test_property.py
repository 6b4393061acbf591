"""Random sequences of verbs: every storage must return what the memory storage returns, step by step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from treadle.core.model import Claim, Claimed, State
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.conformance.property import agrees_with_memory, make_memory
from treadle_testkit.shows import shows


@pytest.mark.slow
def test_memory_agrees_with_itself() -> None:
    agrees_with_memory(make_memory, examples=30)


class Forgetful(MemoryStorage):
    """Loses the count of lost leases."""

    async def claim(self, ask: Claim) -> Claimed:
        claimed = await super().claim(ask)
        return replace(claimed, records=tuple(replace(row, lost=0) for row in claimed.records))


class Unfair(MemoryStorage):
    """Releases jobs to the end of the queue."""

    async def settle(self, outcomes):
        return await super().settle([replace(out, delay=1e-3) if out.state is State.READY else out for out in outcomes])


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Forgetful, Unfair])
def test_a_broken_storage_is_caught(broken: type[MemoryStorage]) -> None:
    async def make(clock: HandClock) -> Storage:
        return broken(clock)

    with pytest.raises(AssertionError, match="differs"):
        agrees_with_memory(make, examples=300, shrink=False)


@pytest.mark.slow
@shows("the SQLite storage answers random calls as the memory storage does")
def test_sqlite_agrees_with_memory(tmp_path: Path) -> None:
    sqlite = pytest.importorskip("treadle.storage.sqlite", reason="there is no SQLite storage yet")
    numbers = itertools.count()

    async def make(clock: HandClock) -> Storage:
        storage = sqlite.SqliteStorage(str(tmp_path / f"{next(numbers)}.db"), now=clock, synchronous="off")
        await storage.open()
        return storage

    agrees_with_memory(make)
