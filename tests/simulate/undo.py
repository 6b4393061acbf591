"""The fleet whose trips register undos, and are cancelled, expire and lose their workers at any moment."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle import App, Retry, State, current
from treadle.policy.cleanups import cleanup_id
from treadle.testing.simulation import KINDS, Simulation

OFTEN = 1_000  # a simulation kills more workers than a job may lose
PARTS = "flight", "car", "hotel"
# A worker that stands still for longer than its lease may have an effect after the cleanup of its job has ended.
FAULTS = (*(kind for kind in KINDS if kind != "stall"), "flips")

app = App("memory://", retry=Retry(attempts=2, base=0.05, max=1.0))
deeds: list[tuple[str, int, str]] = []


async def do(deed: str, order: int, part: str) -> None:
    await asyncio.sleep(0.05)
    deeds.append((deed, order, part))
    await asyncio.sleep(0.05)


@app.task(max_lost=OFTEN)
async def trip(order: int) -> str:
    here = current()
    try:
        for part in PARTS:
            here.on_undo(do, "cancel", order, part)
            await here.step(f"book:{part}", do, "book", order, part)
            await here.sleep(0.2)
    finally:
        await here.step("tell", do, "tell", order, "customer")
    return "booked"


async def work(sim: Simulation) -> None:
    """Start a trip for each order, and cancel some of them, twice."""
    await started(sim, app, trip)


async def started(sim: Simulation, app: App, trip: Any) -> None:
    """The same for the trips of this app."""
    deeds.clear()
    for order in range(sim.size):
        options = {"expires": 1.0} if sim.rng.random() < 0.3 else {}
        job = await sim.again(
            lambda order=order, options=options: trip.options(id=f"trip-{order}", **options).enqueue(order)
        )
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 0.3, 0.8)))
        if sim.rng.random() < 0.5:
            await sim.again(lambda job=job: app.jobs.cancel(job))
            await sim.again(lambda job=job: app.jobs.cancel(job))
    for order in range(sim.size):
        ids = f"trip-{order}", cleanup_id(f"trip-{order}", 0)
        while not await sim.again(lambda ids=ids: _have_ended(app, *ids)):  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(0.5)


async def _have_ended(app: App, *ids: str) -> bool:
    rows = await (await app._core.open()).get(ids)
    return all(row is None or row.state.final for row in rows)


def each_trip_is_booked_or_undone(sim: Simulation) -> None:
    """The last deed for each part of a trip is the one that the ending of its job asks for."""
    rows = {row.job.id: row for row in sim.rows}
    for order in range(sim.size):
        row = rows.get(f"trip-{order}")
        if row is None:
            continue
        last = {part: deed for deed, number, part in deeds if number == order and deed != "tell"}
        wanted = "book" if row.state is State.SUCCEEDED else "cancel"
        cleanup = rows.get(cleanup_id(row.job.id, 0))
        assert set(last.values()) <= {wanted}, f"trip {order} {row.state} {row.reason}, {cleanup}: {last}"
        assert row.state is not State.SUCCEEDED or len(last) == len(PARTS), f"trip {order}: {last}"
