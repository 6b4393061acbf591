"""The fleet in which some jobs kill their worker: none of the others may pay for it."""

from __future__ import annotations

import asyncio

from treadle import App, Retry, State, current
from treadle.testing import Simulation
from treadle.testing.simulation import crash

CHANCE = ("kill", "stall", "cut", "clock")  # faults by which a job may lose its lease while it runs alone

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=1.0))


@app.task(max_lost=2)
async def kills(n: int) -> None:
    await asyncio.sleep(0.02 * (n % 7))
    await crash()


@app.task(max_lost=2)
async def healthy(n: int) -> int:
    await asyncio.sleep(0.05 * (n % 7))
    return n


@app.task(max_lost=2)
async def long(n: int) -> int:
    await asyncio.sleep(7.0)
    return n


@app.task(max_lost=2)
async def flaky(n: int) -> int:
    if current().attempt < 2:
        raise ValueError("not yet")
    return n


async def work(sim: Simulation) -> None:
    """One to three jobs that kill their worker, among others."""
    for n in range(sim.rng.randint(1, 3)):
        job = await sim.again(lambda n=n: kills.options(id=f"kills-{n}").enqueue(n))
        sim.expect(job, None)
    for n in range(2 * sim.size):
        task = sim.rng.choice((healthy, healthy, healthy, flaky, long))
        await sim.again(lambda task=task, n=n: task.options(id=f"job-{n}").enqueue(n))
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0)))


def the_innocent_end_well(sim: Simulation) -> None:
    """Unless chance has killed workers, every job that kills none succeeds, and those that do have failed as lost."""
    for row in sim.rows:
        if row.job.id.startswith("kills-"):
            assert (row.state, row.reason) == (State.FAILED, "lost"), f"{row.job.id} has ended as {row.state}"
        elif not any(fault.kind in CHANCE for fault in sim.case.faults):
            assert row.state is not State.FAILED, f"{row.job.id} has failed: {row.error}"
