"""A simulation replaces dependencies and the lifespan, and each process opens resources of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from treadle import App, BadOption, Retry, StorageUnavailable, depends
from treadle.testing import Simulation, SimulationFailed, simulate

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=0.5))
opened: list[str] = []


@app.lifespan
async def state(app: App) -> AsyncIterator[str]:
    opened.append("lifespan")
    await asyncio.sleep(0.3)
    await app.limits.list()
    yield "pool"


async def bank() -> str:
    raise AssertionError("the real bank was called")


async def fake_bank() -> str:
    opened.append("bank")
    await asyncio.sleep(0.1)
    return "fake"


@app.task(max_lost=100)
async def pay(order: int, through: str = depends(bank)) -> str:
    await asyncio.sleep(0.2)
    return f"{order} {through}"


async def buy(sim: Simulation) -> None:
    for order in range(sim.size):
        sim.expect(
            await sim.again(lambda: pay.options(id=f"order-{order}").enqueue(order)),  # noqa: B023
            f'"{order} fake"',
        )


def test_dependencies_are_replaced() -> None:
    assert simulate(app, buy, overrides={bank: fake_bank}, seeds=3, faults=[]).runs >= 3
    assert "bank" in opened
    with pytest.raises(SimulationFailed, match="AssertionError: the real bank was called"):
        simulate(app, buy, seeds=1, faults=[])


def test_an_override_of_nothing_is_refused() -> None:
    with pytest.raises(BadOption, match=r"no task of this app depends on .*fake_bank"):
        simulate(app, buy, overrides={fake_bank: bank}, seeds=1)


@pytest.mark.slow
def test_a_killed_process_closes_only_its_own_resources() -> None:
    """Workers are killed at any await, also while they open the lifespan, and lose the storage there."""
    report = simulate(app, buy, overrides={bank: fake_bank}, seeds=60, faults=["kill", "stop", "cut"], patience=120.0)
    assert report.faults > 60


def test_each_process_opens_its_own_resources() -> None:
    most = 0
    opened.clear()

    def count(sim: Simulation) -> None:
        nonlocal most
        most = max(most, opened.count("lifespan"))
        assert opened.count("lifespan") == sim.case.workers
        opened.clear()

    simulate(app, buy, overrides={bank: fake_bank}, invariants=[count], seeds=10, faults=[])
    assert most > 1


def test_a_worker_whose_resources_need_an_unavailable_storage_is_restarted() -> None:
    tries = 0

    async def flaky() -> AsyncIterator[str]:
        nonlocal tries
        tries += 1
        if tries % 3:
            raise StorageUnavailable("not there yet")
        yield "pool"

    simulate(app, buy, overrides={bank: fake_bank, state: flaky}, seeds=3, faults=[])
    assert tries >= 9
