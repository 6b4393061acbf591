"""The fleet that our own simulations run with every kind of job at once, and operators who cancel, retry and pause."""

from __future__ import annotations

import asyncio

from tests.simulate.deeds import DEEDS
from tests.simulate.invariants import INVARIANTS
from tests.simulate.operators import operate
from tests.simulate.tasks import app
from treadle.testing.simulation import Simulation

__all__ = ["INVARIANTS", "app", "produce", "work"]


async def work(sim: Simulation) -> None:
    """Run a few producers and one or two operators."""
    operators = [sim.spawn(f"operator-{each}", operate(sim)) for each in range(sim.rng.randint(1, 2))]
    producers = [sim.spawn(f"producer-{each}", produce(sim, each)) for each in range(sim.size // 3)]
    await produce(sim, 9)
    await asyncio.wait([*operators, *producers])


async def produce(sim: Simulation, number: int) -> None:
    for each in range(max(1, sim.size // 2)):
        await sim.rng.choice(DEEDS)(sim, 100 * number + 10 * each + 1)
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0)))
