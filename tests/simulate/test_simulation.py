"""Simulated fleets: a correct one has no violation; a planted fault is found, its story is printed, its case is
reduced."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.simulate.fleets import FLEETS
from treadle import App, BadOption, Retry, current
from treadle.storage import connect
from treadle.testing import Simulation, SimulationFailed, simulate
from treadle.testing.simulation import KINDS, Fault, Kind, case_of
from treadle.testing.simulation.fleet import Settings
from treadle.testing.simulation.stage import uncollected

PARTS = (range(10), range(10, 40), range(40, 80), range(80, 120), range(120, 160), range(160, 200))


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, len(PARTS)))])
@pytest.mark.parametrize("fleet", FLEETS)
def test_a_fleet_on_memory(fleet: str, part: int) -> None:
    report = simulate(**FLEETS[fleet], seeds=PARTS[part])
    assert report.seeds == len(PARTS[part])
    assert report.runs > report.seeds
    assert report.faults > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("fleet", FLEETS)
def test_a_fleet_on_sqlite(fleet: str, part: int) -> None:
    assert simulate(**FLEETS[fleet], seeds=range(10 * part, 10 * (part + 1)), storage="sqlite").seeds == 10


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_seed_is_the_same_run_each_time(fleet: str) -> None:
    """Also the first run in a process, and a run after another seed. This test must pass alone, too."""
    parts = FLEETS[fleet]
    settings = Settings(
        app=lambda: parts["app"],
        scenario=parts["scenario"],
        concurrency=2,
        lease=5.0,
        patience=3_600.0,
        connect=lambda now: connect("memory://", now=now),
        options=parts.get("options", {}),
    )
    for seed in range(4):
        case = case_of(seed, 8, 3, parts.get("faults", KINDS), 6, 5.0)
        first, second = (Simulation(case, settings) for _ in range(2))
        with uncollected():  # as `simulate` runs them; garbage of other tests may end in the middle of a run
            assert first.run() == second.run()
        assert first.entries == second.entries


# --- planted faults are found

app = App("memory://", retry=Retry(attempts=20, base=0.05, max=0.5))
paid: list[int] = []


@app.task(max_lost=100)
async def pay(order: int) -> int:
    paid.append(order)
    await asyncio.sleep(0.1)
    return order


async def buy(sim: Simulation) -> None:
    paid.clear()
    for order in range(sim.size):
        await sim.again(lambda: pay.enqueue(order))  # noqa: B023


async def buy_once(sim: Simulation) -> None:
    paid.clear()
    for order in range(sim.size):
        await sim.again(lambda: pay.options(id=f"order-{order}").enqueue(order))  # noqa: B023


def nobody_pays_twice(sim: Simulation) -> None:
    assert max(Counter(paid).values()) == 1, f"paid {paid}"


def test_a_call_repeated_without_an_id_is_found_and_made_smaller() -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(app, buy, invariants=[nobody_pays_twice], faults=["lost"])
    case = caught.value.found.case
    assert (case.size, case.workers, len(case.faults)) == (1, 1, 1)
    assert case.faults[0].who == -1
    text = str(caught.value)
    assert f"seeds=[{case.seed}]" in text
    assert "of the program loses its answer" in text
    assert "nobody_pays_twice: paid [0, 0]" in text
    simulate(app, buy_once, invariants=[nobody_pays_twice], faults=["lost", "before", "twice"], seeds=50)


def test_a_run_that_is_repeated_after_a_kill_is_found() -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(app, buy_once, invariants=[nobody_pays_twice], faults=["kill"])
    assert [fault.kind for fault in caught.value.found.case.faults] == ["kill"]


def test_one_seed_fails_as_it_did_among_many() -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(app, buy, invariants=[nobody_pays_twice], shrink=False)
    with pytest.raises(SimulationFailed) as again:
        simulate(app, buy, invariants=[nobody_pays_twice], shrink=False, seeds=[caught.value.found.case.seed])
    assert again.value.found == caught.value.found


def test_an_exception_of_a_scenario_is_reported_with_its_seed() -> None:
    async def wrong(sim: Simulation) -> None:
        await sim.again(lambda: pay.enqueue(1))
        raise LookupError("of its own")

    with pytest.raises(SimulationFailed, match="scenario: LookupError: of its own"):
        simulate(app, wrong, seeds=1)


def test_a_scenario_that_does_not_end_and_a_job_that_does_not() -> None:
    async def waiting(sim: Simulation) -> None:
        await asyncio.Event().wait()

    async def spinning(sim: Simulation) -> None:
        await app.limits.set()
        await pay.options(queue="nobody looks").enqueue(1)

    with pytest.raises(SimulationFailed, match="did not end within 30 s"):
        simulate(app, waiting, seeds=1, patience=30.0, shrink=False, faults=[])
    with pytest.raises(SimulationFailed, match="is still ready"):
        simulate(app, spinning, seeds=1, patience=30.0, shrink=False, faults=[])


# --- effects outside of the simulation


def test_a_simulation_leaves_the_app_unchanged() -> None:
    before = app.storage, app._core.now, list(app._core.layers), app._core.client._share, app._core.maker.new_id
    simulate(app, buy_once, seeds=2)
    assert (app.storage, app._core.now, app._core.layers, app._core.client._share, app._core.maker.new_id) == before
    assert app._core.emitter.silent


async def test_simulate_may_be_called_where_an_event_loop_runs() -> None:
    loop = asyncio.get_running_loop()
    assert simulate(app, buy_once, seeds=2).seeds == 2
    assert asyncio.get_running_loop() is loop
    await asyncio.sleep(0)


def test_a_factory_makes_an_app_for_each_seed() -> None:
    made: list[App] = []

    def make() -> App:
        each = App("memory://")

        @each.task(name="n")
        async def n() -> int:
            return current().attempt

        made.append(each)
        return each

    async def run(sim: Simulation) -> None:
        spec: Any = sim.app.find_task("n").job()
        sim.expect(await sim.again(lambda: sim.app.enqueue(spec)), "1")

    assert simulate(make, run, seeds=3).seeds == 3
    assert len(made) == 3


def test_plain_functions_run_on_the_loop() -> None:
    local = App("memory://")

    @local.task
    def double(n: int) -> int:
        return 2 * n

    async def scenario(sim: Simulation) -> None:
        sim.expect(await sim.again(lambda: double.enqueue(4)), "8")

    assert simulate(local, scenario, seeds=3, faults=["stall"]).runs >= 3


def test_a_task_of_a_process_is_refused() -> None:
    local = App("memory://")
    local.task(kind="process", name="heavy")(abs)

    async def nothing(sim: Simulation) -> None: ...

    with pytest.raises(BadOption, match=r"kind=.process."):
        simulate(local, nothing)


WORDS: dict[Kind, str] = {
    "kill": "worker 1 is killed after 3 steps",
    "stop": "worker 1 is stopped after 3 steps",
    "stall": "worker 1 stands still for 1.500 s after 3 steps",
    "before": "call 3 of worker 1 is not applied",
    "lost": "call 3 of worker 1 loses its answer",
    "twice": "call 3 of worker 1 is applied twice",
    "cut": "worker 1 is cut off for 1.500 s after 3 steps",
    "clock": "the clock steps by +1.500 s after 3.000 s",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_happens_and_is_named(kind: Kind) -> None:
    report = simulate(app, buy_once, seeds=30, faults=[kind], size=3)
    assert report.faults > 0
    assert str(Fault(kind, 1, 3, 1.5)) == WORDS[kind]
