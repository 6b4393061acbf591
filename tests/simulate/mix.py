"""The fleet that our own simulations run with every kind of job at once, and operators who cancel, retry and pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.simulate.deeds import DEEDS, Deed
from tests.simulate.invariants import INVARIANTS
from tests.simulate.operators import operate
from tests.simulate.tasks import app
from treadle.testing.simulation import Simulation

__all__ = ["INVARIANTS", "app", "operated", "work"]


async def work(sim: Simulation) -> None:
    await operated(sim, DEEDS)


async def operated(sim: Simulation, deeds: Sequence[Deed]) -> None:
    """Run a few producers, each of which does some of these deeds, and one or two operators."""
    operators = [sim.spawn(f"operator-{each}", operate(sim)) for each in range(sim.rng.randint(1, 2))]
    producers = [sim.spawn(f"producer-{each}", _produce(sim, each, deeds)) for each in range(sim.size // 3)]
    await _produce(sim, 9, deeds)
    await asyncio.wait([*operators, *producers])


async def _produce(sim: Simulation, number: int, deeds: Sequence[Deed]) -> None:
    for each in range(max(1, sim.size // 2)):
        await sim.rng.choice(deeds)(sim, 100 * number + 10 * each + 1)
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0)))
