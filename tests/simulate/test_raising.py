"""An exception of an invariant, a scenario or a worker is a failure with its seed, its traceback and the story."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from treadle import App
from treadle.testing import Simulation, SimulationFailed, simulate

app = App("memory://")


@app.task
async def double(n: int) -> int:
    return 2 * n


async def scenario(sim: Simulation) -> None:
    for n in range(sim.size):
        await sim.again(lambda: double.options(id=f"n-{n}").enqueue(n))  # noqa: B023


def of_large_runs(sim: Simulation) -> None:
    bought = {"n-0": 1}
    assert all(bought[row.job.id] for row in sim.rows)


@pytest.mark.parametrize("shrink", [True, False])
def test_an_exception_of_an_invariant_is_reported_with_its_seed(shrink: bool) -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(app, scenario, invariants=[of_large_runs], faults=[], shrink=shrink)
    text, case = str(caught.value), caught.value.found.case
    assert f"Run it alone with seeds=[{case.seed}]" in text
    assert "error: of_large_runs: KeyError: 'n-1'" in text
    assert "assert all(bought[row.job.id] for row in sim.rows)" in text  # where it was raised
    assert "stored    n-1" in text  # the story
    assert isinstance(caught.value.__cause__, KeyError)
    assert case.size == 2 or not shrink


def test_the_failed_assertion_is_the_cause() -> None:
    def nothing_is_stored(sim: Simulation) -> None:
        assert not sim.rows, "there are rows"

    with pytest.raises(SimulationFailed, match="nothing_is_stored: there are rows") as caught:
        simulate(app, scenario, invariants=[nothing_is_stored])
    assert str(caught.value.__cause__).startswith("there are rows")


def test_the_line_of_a_scenario_that_raises_is_shown() -> None:
    async def wrong(sim: Simulation) -> None:
        await scenario(sim)
        raise LookupError("of its own")

    with pytest.raises(SimulationFailed, match="scenario: LookupError: of its own") as caught:
        simulate(app, wrong, seeds=1)
    assert 'raise LookupError("of its own")' in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_worker_that_cannot_start_is_reported_with_the_reason() -> None:
    broken = App("memory://")

    @broken.lifespan
    async def state(app: App) -> AsyncIterator[int]:
        raise ValueError("no such host")
        yield 1

    @broken.task(name="double")
    async def again(n: int) -> int:
        return 2 * n

    async def one(sim: Simulation) -> None:
        await sim.again(lambda: again.enqueue(1))

    with pytest.raises(SimulationFailed, match=r"worker: LifespanFailed: .*no such host"):
        simulate(broken, one, seeds=1, faults=[])
