"""The fleet that our own simulations run to see in what order jobs start, on which workers, and how many may wait.

Its schedule makes up for every tick it missed, so it is run without steps of the clock, which may be a day.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from tests.simulate.tasks import here
from treadle import App, Defer, Limit, QueueFull, Retry, current
from treadle.testing.history import Evidence
from treadle.testing.history.starts import ticks_left_out
from treadle.testing.simulation import Simulation

BOUND = 3  # waiting jobs of a bounded queue
TICK = 4.0  # seconds between two ticks
OFTEN = 1_000  # a simulation kills more workers than a job may lose
WORKERS: dict[str, Any] = {
    "labels": {"zone": "a"},
    "resources": {"memory": 3},
    "queues": ["default", "refusing", "oldest", "lowest"],
}

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=1.0))
app.limits.declare(
    Limit("queue:refusing", max_waiting=BOUND),
    Limit("queue:oldest", max_waiting=BOUND, when_full="drop_oldest"),
    Limit("queue:lowest", max_waiting=BOUND, when_full="drop_lowest"),
)


# --- tasks


@app.task(max_lost=OFTEN)
async def plain(n: int) -> int:
    await asyncio.sleep(0.01 * (n % 7))
    return n


@app.task(max_lost=OFTEN)
async def long(n: int) -> int:
    await asyncio.sleep(7.0)
    return n


@app.every(TICK, catch_up="all")
@app.task(max_lost=OFTEN)
async def tick() -> None: ...


@app.task(max_lost=OFTEN, uses={"memory": 2})
async def heavy(n: int) -> int:
    await asyncio.sleep(0.05 * (n % 5))
    return n


@app.task(max_lost=OFTEN, uses={"memory": 1})
async def light(n: int) -> int:
    await asyncio.sleep(0.05 * (n % 3))
    return n


@app.task(max_lost=OFTEN, requires={"zone": "b"})
async def elsewhere(n: int) -> int:
    """No worker may run it."""
    return n


@app.task(max_lost=OFTEN, retry=Retry(attempts=1), timeout=0.5)
async def too_long(n: int) -> int:
    await asyncio.sleep(60.0)
    return n


@app.task(max_lost=OFTEN)
async def deferred(n: int) -> int:
    """Defers itself until it has been claimed twice; deferring counts no attempt."""
    if current().version < 3:
        raise Defer(0.2)
    return n


@app.task(max_lost=OFTEN)
async def only_once(n: int) -> int:
    async with current().once(f"once:{n}"):
        await asyncio.sleep(0.05)
    return n


@app.task(max_lost=OFTEN)
async def impatient(n: int) -> int:
    here().add("waits", current().id, name="never", version=current().version, seconds=0.5)
    try:
        await current().wait_for("never", timeout=0.5)
    except TimeoutError:
        here().add("waited", current().id, name="never", version=current().version)
        return n
    return -1


@app.task(max_lost=OFTEN, timeout=0.5)
async def tidying(n: int) -> int:
    """The clean-up of its first run fails, or takes longer than the run may, or is so long that its worker may stop
    meanwhile. Each time the run ends although it has begun to sleep."""
    here().add("waits", current().id, name="nap", version=current().version, seconds=1.0)
    try:
        await current().sleep(1.0)
    finally:
        await asyncio.sleep((0.0, 0.3, 60.0)[n % 3] if current().attempt == 1 else 0.0)
        if n % 3 == 0 and current().attempt == 1:
            raise ConnectionError("closing failed")
    here().add("waited", current().id, name="nap", version=current().version)
    return n


# --- the program


async def send(sim: Simulation, spec: Any, value: object = None) -> Any:
    """Enqueue until the storage answers."""
    job = await sim.again(lambda: app.enqueue(spec))
    if value is not None:
        sim.expect(job, json.dumps(value))
    return job


async def delayed(sim: Simulation, n: int) -> None:
    for each in range(3):
        await send(sim, plain.options(delay=sim.rng.random()).job(n + each), n + each)


async def lanes(sim: Simulation, n: int) -> None:
    """A busy lane, then the first job of a quiet one."""
    for each in range(5):
        await send(sim, plain.options(lane="busy").job(n + each), n + each)
    await send(sim, plain.options(lane=f"quiet-{n}").job(n), n)


async def ranked(sim: Simulation, n: int) -> None:
    """A backlog of a low priority, then a job of a higher one."""
    for each in range(5):
        await send(sim, plain.options(priority=-1).job(n + each), n + each)
    await send(sim, plain.options(priority=sim.rng.choice((1, 2))).job(n), n)


async def crowd(sim: Simulation, n: int) -> None:
    """More jobs than a bounded queue takes."""
    queue = sim.rng.choice(("refusing", "oldest", "lowest"))
    for each in range(8):
        how: dict[str, Any] = {"queue": queue, "priority": each % 3}
        with suppress(QueueFull):
            await send(sim, [plain.options(**how).job(n + each) for _ in range(sim.rng.choice((1, 1, 2)))])


async def placed(sim: Simulation, n: int) -> None:
    """Jobs that use much of a worker, and one that no worker may run."""
    for each in range(4):
        await send(sim, sim.rng.choice((heavy, light)).job(n + each), n + each)
    sim.may_wait(await send(sim, elsewhere.job(n)))


async def timed(sim: Simulation, n: int) -> None:
    """Runs, jobs and waits that take too long, and runs that begin again later."""
    task = sim.rng.choice((deferred, only_once, impatient, tidying))
    await send(sim, task.options(labels=["timed"]).job(n), n)
    sim.expect(await send(sim, too_long.job(n)), None)
    sim.expect(await send(sim, long.options(expires=2.0).job(n)), None)
    first = await send(sim, long.job(n))
    waits = await send(sim, plain.options(after=[first], wait_timeout=1.0).job(n))
    if not sim.case.faults:  # otherwise the call that ends the first job may be the next one after that second
        sim.expect(waits, None)


DEEDS = delayed, lanes, ranked, crowd, placed, timed


async def work(sim: Simulation) -> None:
    """Run a few producers, once a worker has stored the bounds of the queues."""
    first = await send(sim, plain.job(0))
    await sim.again(lambda: first.result(timeout=3_600))
    producers = [sim.spawn(f"producer-{each}", produce(sim, each)) for each in range(sim.size // 3)]
    await produce(sim, 9)
    if producers:
        await asyncio.wait(producers)


async def produce(sim: Simulation, number: int) -> None:
    for each in range(max(1, sim.size // 3)):
        await sim.rng.choice(DEEDS)(sim, 100 * number + 10 * each + 1)
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0)))


def no_tick_is_left_out(sim: Simulation) -> None:
    """The schedule makes up for each moment at which no worker ran."""
    evidence = Evidence(sim.entries, sim.rows)
    left_out = list(ticks_left_out(evidence, {tick.name: TICK}))
    assert not left_out, left_out[0].text
