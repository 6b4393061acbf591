"""The fleet whose jobs reserve costs of budgets, and spend less or more, by themselves and in steps with limits."""

from __future__ import annotations

import asyncio
import json

from treadle import App, Limit, Retry, current
from treadle.testing.simulation import Simulation

OFTEN = 1_000  # a simulation kills more workers than a job may lose
RESERVED = 20

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=1.0))
app.limits.declare(Limit("tokens", rate=50, per=60.0), Limit("sips", rate=20, per=10.0, how="bucket", burst=40))


async def call(name: str, cost: int) -> int:
    """A call of a model. It says twice what it has spent, as a stream does."""
    current().spent({name: cost // 2})
    await asyncio.sleep(0.2)
    current().spent({name: cost - cost // 2})
    if cost % 7 == 0:
        raise ConnectionError(name)
    return cost


@app.task(max_lost=OFTEN, retry=Retry(attempts=2, base=0.05, max=1.0))
async def ask(name: str, cost: int) -> int:
    try:
        return await call(name, cost)
    except ConnectionError:
        return 0


@app.task(max_lost=OFTEN)
async def talk(name: str, cost: int) -> int:
    step = current().step.options(limits={name: RESERVED}, retry=Retry(attempts=2, base=0.05, max=1.0))
    try:
        return await step("call", call, name, cost)
    except ConnectionError:
        return 0


async def work(sim: Simulation) -> None:
    """Enqueue jobs that spend a half to one and a half of what they reserve."""
    for n in range(sim.size):
        name, cost = sim.rng.choice(("tokens:ann", "tokens:bob", "sips")), sim.rng.randint(RESERVED // 2, 30)
        task = sim.rng.choice((talk, ask.options(limits={name: RESERVED})))
        job = await sim.again(lambda task=task, name=name, cost=cost: task.enqueue(name, cost))
        sim.expect(job, json.dumps(0 if cost % 7 == 0 else cost))
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0, 10.0)) if n % 3 else 0.0)
