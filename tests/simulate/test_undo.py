"""Trips that register undos, cancelled and expired at any moment of a fleet with faults."""

from __future__ import annotations

import pytest

from tests.simulate.fleets import FLEETS
from treadle import Abort, App, current
from treadle.testing import Simulation, simulate
from treadle_testkit.shows import shows


@pytest.mark.slow
@shows("a trip is booked or undone as a whole, whatever cancels or expires it and whichever workers are killed")
@pytest.mark.parametrize("part", range(10))
def test_trips_of_a_thousand_seeds_are_booked_or_undone(part: int) -> None:
    assert simulate(**FLEETS["undo"], seeds=range(100 * part, 100 * (part + 1))).seeds == 100


@pytest.mark.slow
@shows("a trip whose steps have limits is booked or undone as a whole, under every fault")
@pytest.mark.parametrize("part", range(4))
def test_trips_of_steps_with_limits_are_booked_or_undone(part: int) -> None:
    assert simulate(**FLEETS["limited"], seeds=range(50 * part, 50 * (part + 1))).seeds == 50


def test_an_invariant_sees_the_rows_after_the_undos() -> None:
    app, undone = App("memory://"), list[str]()

    async def work() -> None: ...

    @app.task
    async def trip() -> None:
        current().on_undo(undone.append, "trip")
        await current().step("work", work)
        raise Abort("no")

    async def scenario(sim: Simulation) -> None:
        undone.clear()
        await sim.again(lambda: trip.options(id="trip").enqueue())

    def is_undone(sim: Simulation) -> None:
        assert undone

    assert simulate(app, scenario, invariants=[is_undone], seeds=40, faults=[], workers=1).seeds == 40
