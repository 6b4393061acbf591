"""The fleet whose jobs wait for limits: rates with long windows, so that a start that is not due to a job is seen for
long, and slots of which jobs need one or several."""

from __future__ import annotations

import asyncio
import json

from treadle import App, Limit, Retry
from treadle.testing.simulation import Simulation

LIMITS = ["mail"], ["door"], ["gate"], ["mail", "door"], ["door", "mail"], ["mail", "gate"]
OFTEN = 1_000  # a simulation kills more workers than a job may lose

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=1.0))
app.limits.declare(
    Limit("mail", rate=3, per=120.0), Limit("door", slots=1), Limit("gate", slots=2), Limit("room", slots=3)
)


@app.task(max_lost=OFTEN)
async def quick(n: int) -> int:
    return n


@app.task(max_lost=OFTEN)
async def slow(n: int) -> int:
    await asyncio.sleep(3.0)
    return n


async def work(sim: Simulation) -> None:
    """Enqueue jobs of a rate, of limits of slots, and of both."""
    for n in range(sim.size):
        task = sim.rng.choice((quick, slow))
        limits = sim.rng.choice((*LIMITS, ["room"], ["room"]))
        how = task.options(limits=limits, cost=sim.rng.randint(1, 3) if limits == ["room"] else 1)
        job = await sim.again(lambda how=how, n=n: how.enqueue(n))
        sim.expect(job, json.dumps(n))
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0, 10.0)))
