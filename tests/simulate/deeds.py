"""The deeds of the producers of our own simulations: each enqueues some jobs and sets their expected values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tests.simulate import tasks
from tests.simulate.operators import act
from tests.simulate.tasks import app, here
from treadle import JobSpec, Key, all_done
from treadle.errors import IdTaken, KeyHeld, Signalled, Stale
from treadle.testing.simulation import Simulation

Deed = Callable[[Simulation, int], Awaitable[None]]


async def send(sim: Simulation, spec: Any, value: object = None) -> Any:
    """Enqueue until the storage answers."""
    job = await sim.again(lambda: app.enqueue(spec))
    if value is not None:
        sim.expect(job, json.dumps(value, separators=(",", ":")))
    return job


async def singles(sim: Simulation, n: int) -> None:
    task = sim.rng.choice((tasks.plain, tasks.flaky, tasks.in_thread, tasks.long))
    how: dict[str, Any] = {}
    if sim.rng.random() < 0.5:
        how = sim.rng.choice(({"priority": 5}, {"delay": 1.5}, {"lane": f"tenant-{n % 2}"}, {"aging": 3.0}))
    await send(sim, task.options(**how).job(n), n)


async def several(sim: Simulation, n: int) -> None:
    for job, each in zip(await send(sim, [tasks.plain.job(n + each) for each in range(4)]), range(4), strict=True):
        sim.expect(job, json.dumps(n + each))


async def in_order(sim: Simulation, n: int) -> None:
    for each in range(3):
        await send(sim, tasks.in_turn.options(limits=["account:1"]).job(n + each), n + each)


async def limited(sim: Simulation, n: int) -> None:
    for each in range(3):
        limit = sim.rng.choice((["api"], ["api:x"], ["calls"], ["api", "calls"]))
        await send(sim, tasks.plain.options(limits=limit).job(n + each), n + each)


async def families(sim: Simulation, n: int) -> None:
    specs: list[tuple[JobSpec[Any, Any], int]] = [
        (tasks.parent.job(n), 5 * n),
        (tasks.fan_in.job(n), 3 * n + 3),
        (tasks.tolerant.job(n), 2),
    ]
    spec, value = sim.rng.choice(specs)
    await send(sim, spec, value)


async def joined(sim: Simulation, n: int) -> None:
    first, second = await send(sim, tasks.plain.job(n), n), await send(sim, tasks.hopeless.job(n))
    await send(sim, tasks.plain.options(after=[first]).job(n + 1), n + 1)
    await send(sim, tasks.plain.options(after=[first, second], when=all_done()).job(n + 2), n + 2)
    doomed = await send(sim, tasks.plain.options(after=[first, second]).job(n))
    sim.expect(doomed, None)


async def with_keys(sim: Simulation, n: int) -> None:
    for _ in range(3):
        conflict: Any = sim.rng.choice(("keep", "keep", "raise", "replace"))
        with suppress(KeyHeld):
            await send(sim, tasks.keyed.options(key=Key(str(n % 2), conflict=conflict)).job(n))
        await asyncio.sleep(sim.rng.random() * 0.3)


async def inside(sim: Simulation, n: int) -> None:
    await send(sim, tasks.sender.job(n), n)


async def waits(sim: Simulation, n: int) -> None:
    job = await send(sim, tasks.durable.job(n))
    await asyncio.sleep(sim.rng.choice((0.0, 0.3, 3.0)))
    word = f"now-{n}"  # each job has a word of its own
    here().add("signal", job.id, name="go", text=word)
    with suppress(Signalled, Stale):  # the call before was carried out and its answer lost; the job may have ended
        await sim.again(lambda: app.jobs.signal(job, "go", word))
    here().add("signalled", job.id, name="go", text=word)


async def batches(sim: Simulation, n: int) -> None:
    for job, each in zip(await send(sim, [tasks.together.job(n + each) for each in range(5)]), range(5), strict=True):
        sim.expect(job, json.dumps(2 * (n + each)))


async def share(sim: Simulation, n: int) -> None:
    await send(sim, tasks.keyed.options(key=f"shared-{n}").job(n), n)
    await send(sim, sim.rng.choice((tasks.sharing, tasks.sharing_beside)).job(n), 2 * n)
    first = tasks.keyed.options(key=f"shared-{n}").job(n)
    _, job = await send(sim, [first, tasks.add_two.options(after=[first], pass_result=True).job()])
    sim.expect(job, json.dumps(n + 2))


async def chosen(sim: Simulation, n: int) -> None:
    """Two tasks enqueue one id: one of them gets it."""
    for task in (tasks.plain, tasks.flaky):
        with suppress(IdTaken):
            await send(sim, task.options(id=f"chosen-{n % 3}").job(n % 3))


async def race(sim: Simulation, n: int) -> None:
    sim.expect(await send(sim, tasks.racing.job(n)), None)


async def given_up(sim: Simulation, n: int) -> None:
    """A workflow that is cancelled while it grows."""
    job = await send(sim, sim.rng.choice((tasks.parent, tasks.fan_in)).job(n))
    await asyncio.sleep(sim.rng.random() * 0.1)
    await act(sim, "cancel", job.id, lambda: app.jobs.cancel(job))


DEEDS: tuple[Deed, ...] = (
    singles,
    singles,
    several,
    in_order,
    limited,
    families,
    families,
    joined,
    with_keys,
    inside,
    waits,
    batches,
    share,
    chosen,
    race,
    given_up,
)
