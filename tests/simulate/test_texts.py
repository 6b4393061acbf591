"""A simulation encrypts and offloads as the app does, into memory; scenario and invariants see plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from treadle import App, Keys, Retry
from treadle.core.query_model import Query
from treadle.testing import Simulation, simulate

LARGE = "x" * 5_000


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_texts_are_encrypted_and_offloaded(storage: Literal["memory", "sqlite"], tmp_path: Path) -> None:
    folder, seen = tmp_path / "blobs", list[str]()
    keys = Keys(Keys.make("k"))
    app = App("memory://", keys=keys, blobs=folder, offload=1_024, retry=Retry(attempts=30, base=0.05, max=0.5))

    @app.task(max_lost=100)
    async def echo(secret: str) -> str:
        return secret * 2

    async def scenario(sim: Simulation) -> None:
        for text in (LARGE, "secret"):
            sim.expect(
                await sim.again(lambda: echo.options(id=f"of-{text[:6]}").enqueue(text)),  # noqa: B023
                f'"{text * 2}"',
            )
        seen.extend(row.job.payload for row in (await sim._storage.find(Query())).records)

    def all_rows_are_plain(sim: Simulation) -> None:
        assert sorted(row.job.payload for row in sim.rows) == [
            f'{{"args":[],"kwargs":{{"secret":"{text}"}}}}' for text in ("secret", LARGE)
        ]

    assert simulate(app, scenario, invariants=[all_rows_are_plain], seeds=5, storage=storage).seeds == 5
    assert seen
    assert all(text.startswith(('{"$t":"sealed"', '{"$t":"blob"')) for text in seen)
    assert not folder.exists()
