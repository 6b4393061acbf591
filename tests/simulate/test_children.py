"""A simulation waits for the jobs that a task enqueues without an id, and checks that they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from treadle import App, Flow, flow
from treadle.testing import Simulation, SimulationFailed, simulate

app = App("memory://")
mails: list[int] = []


@app.task
async def mail(order: int) -> None:
    mails.append(order)


@app.task
async def never() -> None:
    await asyncio.Event().wait()


@app.task
async def mails_later(order: int) -> None:
    await mail.options(delay=60).enqueue(order)


@app.task
async def composes_later(order: int) -> Flow[None]:
    return flow(mail.options(delay=60).job(order))


@app.task
async def starts_an_endless_one() -> None:
    await never.enqueue()


@pytest.mark.parametrize("place", [mails_later, composes_later])
def test_the_invariants_see_what_the_jobs_of_a_task_did(place: Callable[..., Awaitable[object]]) -> None:
    async def scenario(sim: Simulation) -> None:
        mails.clear()
        for order in range(sim.size):
            await place.options(id=f"order-{order}").enqueue(order)  # type: ignore[attr-defined]

    def everybody_got_a_mail(sim: Simulation) -> None:
        assert sorted(mails) == list(range(sim.size)), mails

    simulate(app, scenario, invariants=[everybody_got_a_mail], faults=[], seeds=5)


def test_a_job_of_a_task_that_never_ends_is_a_failure() -> None:
    async def scenario(sim: Simulation) -> None:
        await starts_an_endless_one.options(id="order").enqueue()

    with pytest.raises(SimulationFailed, match=r"unfinished: treadle:\w+-000001 is still running"):
        simulate(app, scenario, faults=[], seeds=1, workers=1, patience=60.0)
