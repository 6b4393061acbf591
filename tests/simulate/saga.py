"""The fleet whose jobs are sagas: calls fail and succeed in a later run, and workers are killed in the undo."""

from __future__ import annotations

import asyncio

from treadle import Abort, App, Retry, State, current
from treadle.testing.simulation import KINDS, Simulation

OFTEN = 1_000  # a simulation kills more workers than a job may lose
PARTS = "flight", "car", "hotel"
FAULTS = (*KINDS, "flips", "flips", "flips")  # as many as the faults that may hit between them

app = App("memory://", retry=Retry(attempts=100, base=0.05, max=1.0))
deeds: list[tuple[str, int, str]] = []


async def do(deed: str, order: int, part: str) -> None:
    await asyncio.sleep(0.05)
    deeds.append((deed, order, part))
    await asyncio.sleep(0.05)


@app.task(max_lost=OFTEN)
async def trip(order: int) -> str:
    here, undo = current(), list[str]()
    try:
        for part in PARTS:
            undo.append(part)  # a call that failed may have had its effect
            await here.step(f"book:{part}", do, "book", order, part)
    except Exception as error:
        for part in undo:
            await here.step(f"cancel:{part}", do, "cancel", order, part)
            await here.sleep(0.1)
        raise Abort(f"no trip {order}: {error}") from error
    return "booked"


async def work(sim: Simulation) -> None:
    """Start a trip for each order."""
    deeds.clear()
    for order in range(sim.size):
        await sim.again(lambda order=order: trip.options(id=f"trip-{order}").enqueue(order))
        await asyncio.sleep(sim.rng.choice((0.0, 0.05, 1.0)))


def each_trip_is_booked_or_undone(sim: Simulation) -> None:
    """The last deed for each part of a trip is the one that its job reports."""
    for row in sim.rows:
        if not row.job.id.startswith("trip-") or row.job.task != trip.name:
            continue
        order = int(row.job.id.removeprefix("trip-"))
        last = {part: deed for deed, number, part in deeds if number == order}
        wanted = "book" if row.state is State.SUCCEEDED else "cancel"
        assert set(last.values()) <= {wanted}, f"trip {order} {row.state}: {last}"
        assert row.state is not State.SUCCEEDED or len(last) == len(PARTS), f"trip {order}: {last}"
        assert row.state is State.SUCCEEDED or row.reason == "aborted", f"trip {order}: {row.reason} {row.error}"
