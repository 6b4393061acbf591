"""Random calls to the memory storage and to SQLite, on one clock moved by hand: the same answers, the same rows.

Fuller than a law each: it meets the corners where two slow roads cross.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.storage.play import Crowd, Play, said
from treadle.storage.memory import MemoryStorage
from treadle.storage.sqlite import SqliteStorage
from treadle.testing import HandClock

SEEDS = int(os.environ.get("SEEDS", "25"))


def differing(ours: Any, theirs: Any) -> str:
    """Where two answers differ, in few words."""
    if isinstance(ours, Struct) and type(ours) is type(theirs):
        pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in ours.__struct_fields__]
        return f"{getattr(ours, 'id', '')} " + ", ".join(f"{n}: {differing(a, b)}" for n, a, b in pairs if a != b)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        return "; ".join(differing(a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
    return f"{ours!r} instead of {theirs!r}"


async def play(kind: type[Play], seed: int, path: str, steps: int) -> None:
    clock = HandClock()
    memory, sqlite = MemoryStorage(clock), SqliteStorage(path, now=clock, synchronous="off")
    await sqlite.open()
    try:
        game = kind(seed, clock)
        for step in range(steps):
            call = game.next()
            expected, found = await said(call, memory), await said(call, sqlite)
            assert found == expected, f"step {step}: {differing(found, expected)}"
            rows = await memory.get(game.ids)
            for mine, theirs in zip(await sqlite.get(game.ids), rows, strict=True):
                assert mine == theirs, f"step {step}: {differing(mine, theirs)}"
            game.rows = {row.job.id: row for row in rows if row is not None}
            ours, reference = await sqlite.stats(), await memory.stats()
            assert ours.counts == reference.counts, step
            assert ours.limits == reference.limits, step
            assert sorted(each.worker for each in ours.workers) == sorted(each.worker for each in reference.workers)
            clock.advance(game.dice.choice([0, 0, 0.25, 1, 1, 3, 12, 70]))
    finally:
        await sqlite.close()


@pytest.mark.parametrize("kind", [Play, Crowd])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_as_memory(kind: type[Play], seed: int, tmp_path: Path) -> None:
    asyncio.run(play(kind, seed, str(tmp_path / "jobs.db"), 150))
