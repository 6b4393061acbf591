"""The fleet whose jobs await children: a call, a map, a race, a time limit, and several in tasks of asyncio."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from treadle import App, JobFailed, Retry, State, current
from treadle.policy.cleanups import is_cleanup
from treadle.testing.simulation import KINDS, Simulation

OFTEN = 1_000  # a simulation kills more workers than a job may lose
FAULTS = (*KINDS, "flips", "flips")

app = App("memory://", retry=Retry(attempts=100, base=0.05, max=1.0))
paths: dict[str, list[str]] = defaultdict(list)  # job -> what it decided, once for each run of the deciding step


def decide(what: str) -> str:
    paths[current().id].append(what)
    return what


@app.task(max_lost=OFTEN, retry=Retry(attempts=1))
async def part(number: int) -> int:
    await asyncio.sleep(0.05)
    if number % 3 == 0:
        raise ConnectionError(f"part {number}")
    return number


@app.task(max_lost=OFTEN)
async def late(number: int) -> int:
    await current().sleep(30)
    return number


@app.task(max_lost=OFTEN)
async def order(number: int) -> list[Any]:
    here, found = current(), list[Any]()
    try:
        found.append(await here.call(part.job(number)))
    except JobFailed:
        found.append("failed")
    await here.step("first", decide, f"call {found[-1]}")
    parts = await here.map([part.job(number + more) for more in range(4)], at_most=2, failures="keep")
    found += [value if isinstance(value, int) else "failed" for value in parts]
    name, _ = await here.first(late=here.call(late.job(number)), soon=here.sleep(0.2), part=here.call(part.job(1)))
    found.append(await here.step("second", decide, f"race {name}"))
    try:
        async with here.timeout(0.3):
            await asyncio.gather(here.call(late.job(number)), here.call(part.job(2)))
    except TimeoutError:
        found.append(await here.step("third", decide, "late"))
    return found


async def work(sim: Simulation) -> None:
    """Start an order for each number."""
    paths.clear()
    for number in range(sim.size):
        await sim.again(lambda number=number: order.options(id=f"order-{number}").enqueue(number))
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0)))


def each_order_has_decided_once(sim: Simulation) -> None:
    """The result of each order is what its children and its recorded decisions say, and no child of it remains."""
    rows = {row.job.id: row for row in sim.rows}
    for id, row in rows.items():
        if row.job.task != order.name or is_cleanup(row.job):
            continue
        assert row.state is State.SUCCEEDED, f"{id} {row.state}: {row.error}"
        number, found = int(id.removeprefix("order-")), app._core.tasks[order.name].signature.decode_result(row.result)
        values = ["failed" if n % 3 == 0 else n for n in (number, *range(number, number + 4))]
        decided: dict[str, set[str]] = defaultdict(set)
        for text in paths[id]:
            decided[text.split()[0]].add(text)
        assert found[:5] == values, f"{id}: {found}"
        assert all(len(which) == 1 for which in decided.values()), f"{id} has decided twice: {decided}"
        # A step of the clock may pass the time limit and the end of the child's sleep at once: then the child counts.
        assert found[5:] in ([*decided["race"], "late"], [*decided["race"]]), f"{id}: {found}, {decided}"
        open_ = [child.job.id for child in rows.values() if child.job.parent == id and not child.state.final]
        assert not open_, f"{id} has ended, and {open_} have not"
