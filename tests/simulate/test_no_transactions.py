"""A simulation has no transactions and no outbox: code that needs them learns so, and what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from treadle import App, Outbox, Retry, current
from treadle.testing import Simulation, SimulationFailed, simulate


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
@pytest.mark.parametrize("outbox", [False, True])
def test_within_names_the_simulation(storage: Literal["memory", "sqlite"], outbox: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    app = App("memory://", outbox=Outbox(url) if outbox else None)

    @app.task
    async def send(to: str) -> None: ...

    async def scenario(sim: Simulation) -> None:
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("BEGIN")
            await app.enqueue(send.job("ada"), within=db)

    expected = (
        r"simulate does not support within=; its storage has no transactions.* test this code with app\.testing\(\)"
    )
    with pytest.raises(SimulationFailed, match=expected):
        simulate(app, scenario, seeds=1, storage=storage, faults=[])


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_a_transaction_of_a_run_names_the_simulation(storage: Literal["memory", "sqlite"]) -> None:
    app = App("memory://", retry=Retry(attempts=1))

    @app.task
    async def book() -> None:
        async with current().transaction():
            pass

    async def scenario(sim: Simulation) -> None:
        await book.enqueue()

    def it_said_why(sim: Simulation) -> None:
        assert "simulate does not support current().transaction(); its storage has no" in str(sim.rows[0].error)

    simulate(app, scenario, invariants=[it_said_why], seeds=1, storage=storage, faults=[])
