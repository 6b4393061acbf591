"""The fleet whose trips take steps with limits and register undos, and are cancelled, expire and lose their workers."""

from __future__ import annotations

import asyncio

from tests.simulate import undo
from treadle import App, Limit, Retry, current
from treadle.testing.simulation import Simulation

app = App("memory://", retry=Retry(attempts=2, base=0.05, max=1.0))
app.limits.declare(Limit("seats", slots=2), Limit("tell", rate=3, per=1))


@app.task(name=undo.trip.name, max_lost=undo.OFTEN)
async def trip(order: int) -> str:
    here = current()
    try:
        book, tell = here.step.options(limits=["seats"]), here.step.options(limits=["tell"], retry=Retry(attempts=9))
        here.on_undo(undo.do, "cancel", order, "flight")
        await book("book:flight", undo.do, "book", order, "flight")
        for part in undo.PARTS[1:]:
            here.on_undo(undo.do, "cancel", order, part)
        await asyncio.gather(*[book(f"book:{part}", undo.do, "book", order, part) for part in undo.PARTS[1:]])
        await here.sleep(0.2)
    finally:
        await tell("tell", undo.do, "tell", order, "customer")
    return "booked"


async def work(sim: Simulation) -> None:
    """As the fleet of undos."""
    await undo.started(sim, app, trip)
