"""The fleet whose jobs run more than once: after failures, lost leases, releases and retries by operators. It also has
the kinds of keys and limits that the mixed fleet does not have."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tests.simulate import tasks
from tests.simulate.deeds import Deed, given_up, send, singles, waits, with_keys
from tests.simulate.mix import operated
from tests.simulate.operators import act
from treadle import Key
from treadle.testing import Simulation

app = tasks.app


async def work(sim: Simulation) -> None:
    await operated(sim, DEEDS)


async def slowly(sim: Simulation, n: int) -> None:
    """Jobs that fail once, and then run longer than a lease."""
    await send(sim, tasks.slow_retry.job(n), n)


async def listed(sim: Simulation, n: int) -> None:
    """A job that gets the results of others in their order."""
    await send(sim, tasks.fan_list.job(n), [n + 2, n + 1, n])


async def costly(sim: Simulation, n: int) -> None:
    """Limits of every kind, also with costs."""
    for each in range(4):
        task = sim.rng.choice((tasks.plain, tasks.flaky))
        how: dict[str, Any] = sim.rng.choice(
            (
                {"limits": ["wide"], "cost": sim.rng.choice((1, 2, 5))},
                {"limits": ["tokens"], "cost": sim.rng.choice((1, 2, 5))},
                {"limits": ["until ended"]},
            )
        )
        await send(sim, task.options(**how).job(n + each), n + each)


async def aged(sim: Simulation, n: int) -> None:
    """A backlog of jobs that age, each of a priority of its own."""
    for each in range(6):
        await send(sim, tasks.plain.options(aging=0.5, priority=sim.rng.randint(0, 3)).job(n + each), n + each)


async def more_keys(sim: Simulation, n: int) -> None:
    """Keys that are free once the job runs, or only after some time."""
    for _ in range(4):
        key = sim.rng.choice((Key("until", until="started"), Key("window", window=2.0)))
        await send(sim, sim.rng.choice((tasks.keyed, tasks.flaky)).options(key=key).job(n))
        await asyncio.sleep(sim.rng.random() * 0.6)


async def repaired(sim: Simulation, n: int) -> None:
    """Jobs that fail until an operator retries what they failed because of."""
    await _repaired(sim, n, sim.rng.choice((1.0, 20.0)))


async def _repaired(sim: Simulation, n: int, after: float) -> None:
    succeeds = await send(sim, tasks.plain.options(keep=0).job(n), n)
    first = await send(sim, tasks.second_chance.job(n))
    await send(sim, tasks.total.options(after=[succeeds, first]).job())
    parent = await send(sim, tasks.unlucky.job(n))
    await asyncio.sleep(after)
    await act(sim, "retry", first.id, lambda: app.jobs.retry(first))
    for row in (await sim.again(lambda: app.jobs.list(workflow=parent.id))).records:
        if row.job.task.endswith("second_chance"):
            await act(sim, "retry", row.job.id, partial(app.jobs.retry, row.job.id))


async def late(sim: Simulation, n: int) -> None:
    """A result that is needed after its row may be pruned, and a row that must be there after that time."""
    if sim.rng.random() < 0.8:  # so much virtual time takes as long as many other seeds
        return
    if sim.rng.random() < 0.5:
        await _repaired(sim, n, 95.0)  # a prune comes every half minute
        return
    await send(sim, tasks.plain.job(n), n)
    first = await send(sim, tasks.plain.options(keep=0).job(n), n)
    second = await send(sim, tasks.plain.options(delay=70.0).job(n + 1), n + 1)
    await send(sim, tasks.total.options(after=[first, second]).job(), 2 * n + 1)
    await asyncio.sleep(75.0)


DEEDS: tuple[Deed, ...] = (
    singles,
    singles,
    slowly,
    slowly,
    listed,
    costly,
    aged,
    with_keys,
    more_keys,
    waits,
    repaired,
    late,
    given_up,
)
