"""The operators of our own simulations: they cancel and retry jobs, pause queues and change limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tests.simulate.tasks import app, here
from treadle import Limit
from treadle.errors import TreadleError
from treadle.testing.simulation import Simulation


async def operate(sim: Simulation) -> None:
    """Act on jobs and queues; at the end nothing is paused."""
    for _ in range(sim.rng.randint(0, 3)):
        await asyncio.sleep(sim.rng.random() * 3)
        await sim.rng.choice((cancel, cancel, retry, pause, change, collide))(sim)


def _some(sim: Simulation) -> str | None:
    """A stored job, but not one that waits for a signal, which is sent once, and not one whose value other jobs have
    too."""
    stored = {entry.id for entry in sim.entries if entry.what == "stored"}
    ids = [
        entry.id
        for entry in sim.entries
        if entry.what == "asked"
        and entry.id in stored
        and not entry.facts["task"].endswith("durable")
        and "shared-" not in entry.facts.get("key", "")
    ]
    return sim.rng.choice(ids) if ids else None


async def act(sim: Simulation, name: str, id: str, call: Callable[[], Awaitable[Any]]) -> None:
    """Act on a job; from then on, the values of its workflow are not predictable."""
    here().add("act", id, name=name)
    sim.forget(id)
    how = None
    with suppress(TreadleError):
        await sim.again(call)
        how = "cancelled" if name == "cancel" else None
    here().add("acted", id, name=name, how=how)


async def cancel(sim: Simulation) -> None:
    id = _some(sim)
    if id is not None:
        await act(sim, "cancel", id, lambda: app.jobs.cancel(id))


async def retry(sim: Simulation) -> None:
    id = _some(sim)
    if id is not None:
        await act(sim, "retry", id, lambda: app.jobs.retry(id))


async def pause(sim: Simulation, queue: str | None = None) -> None:
    queue = queue or sim.rng.choice(("default", "strict"))
    name = f"queue:{queue}"
    here().add("act", name=name, facts={"limit": True, "pausing": queue})
    await sim.again(lambda: app.queues.pause(queue))
    here().add("acted", name=name, facts={"paused": queue})
    await asyncio.sleep(sim.rng.random() * 3)
    here().add("act", name=name, facts={"limit": True, "resumed": queue})
    await sim.again(lambda: app.queues.resume(queue))
    here().add("acted", name=name, facts={"was_resumed": queue})


async def change(sim: Simulation) -> None:
    name = sim.rng.choice(("api", "queue:strict", "queue:default"))
    here().add("note", name=name, facts={"set": True})
    await sim.again(lambda: app.limits.set(Limit(name, slots=sim.rng.randint(1, 3))))


async def collide(sim: Simulation) -> None:
    """Two operators change one limit at the same time."""
    rule = Limit("queue:strict", slots=sim.rng.randint(1, 3))
    here().add("note", name=rule.name, facts={"set": True})
    await asyncio.gather(pause(sim, "strict"), sim.again(lambda: app.limits.set(rule)))
