"""A row that retention has pruned, or that an act has deleted, is no lost job; any other missing row is one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulate.test_history import LEASE, START, at, lived
from treadle import App, Retry
from treadle.testing import Simulation, SimulationFailed, simulate
from treadle.testing.history import Entry, check

app = App("memory://", retry=Retry(attempts=20, base=0.05, max=0.5))


@app.task(keep=60, max_lost=100)
async def short(n: int) -> int:
    await asyncio.sleep(0.1)
    return n


@app.task(keep=0, keep_failed=60, max_lost=100)
async def failing() -> None:
    raise ValueError("no")


async def for_long(sim: Simulation) -> None:
    """The last scenario of an audit: retention passes while it waits."""
    for n in range(sim.size):
        sim.expect(await sim.again(lambda: short.options(id=f"n-{n}").enqueue(n)), str(n))  # noqa: B023
    first = await sim.again(lambda: failing.options(id="f", retry=Retry(attempts=1)).enqueue())
    sim.expect(first, None)
    await sim.again(lambda: short.options(id="g", after=[first]).enqueue(1))
    await asyncio.sleep(150)


def nothing_is_left(sim: Simulation) -> None:
    assert not [row for row in sim.rows if not row.job.id.startswith("treadle")]


@pytest.mark.slow
def test_retention_is_no_loss() -> None:
    simulate(app, for_long, seeds=2, faults=[], workers=1, invariants=[nothing_is_left])
    assert simulate(app, for_long, seeds=15, size=3, workers=2).faults > 15


def test_a_wrong_value_is_found_although_its_row_is_deleted() -> None:
    async def wrong(sim: Simulation) -> None:
        sim.expect(await short.enqueue(1), "2")
        await asyncio.sleep(150)

    async def fails(sim: Simulation) -> None:
        sim.expect(await failing.options(retry=Retry(attempts=1)).enqueue(), "null")
        await asyncio.sleep(150)

    with pytest.raises(SimulationFailed, match="job-000001 had the value 1 before its row was pruned, expected 2"):
        simulate(app, wrong, seeds=1, faults=[], workers=1)
    with pytest.raises(SimulationFailed, match="job-000001 was failed before its row was pruned, expected null"):
        simulate(app, fails, seeds=1, faults=[], workers=1)


def test_a_deleted_job_is_no_loss() -> None:
    async def deletes(sim: Simulation) -> None:
        job = await short.enqueue(1)
        await job.result(10)
        sim.history.add("act", job.id, name="delete")
        await app.jobs.delete(job)
        await asyncio.sleep(100)

    simulate(app, deletes, seeds=1, faults=[], workers=1, invariants=[nothing_is_left])


# --- the rule alone


def rules(entries: Sequence[Entry], rows: Sequence[Any] = (), **rest: Any) -> list[str]:
    return [found.rule for found in check(entries, rows, lease=LEASE, **rest)]


def kept(seconds: float, id: str = "a", **facts: Any) -> Entry:
    return at(0, "asked", id, "p", facts={"keep": seconds, **facts})


def until(moment: float) -> Entry:
    return Entry(at=START + moment, actor="p", what="note")


DAY = 86_400.0


@pytest.mark.parametrize(
    ("lost", "entries"),
    [
        (True, [*lived(), until(DAY)]),
        (False, [*lived(), until(DAY + 2)]),
        (True, [kept(60), *lived()[1:], until(61)]),
        (False, [kept(60), *lived()[1:], until(62)]),
        (True, [kept(60), *lived()[1:-1], at(50, "settled", version=1, how="succeeded"), until(61)]),
        (False, [kept(60), *lived()[1:-1], at(50, "settled", version=1, how="succeeded"), until(62)]),  # told late
        (False, [kept(60), *lived()[1:3], at(50, "settled", version=1, how="succeeded"), until(62)]),  # it only ended
        (False, [kept(60), *lived()[1:], at(3, "clock", "", seconds=60.0)]),
        (True, [kept(60), *lived()[1:], at(1, "clock", "", seconds=60.0)]),  # before it has ended
        (True, [kept(60), *lived()[1:2], until(1_000)]),  # it never ran
        (False, [kept(60), *lived()[1:-1], until(1_000)]),  # the outcome may be stored, its worker was killed
        (True, [kept(60), *lived()[1:-1], at(2, "settled", version=1, how="failed"), until(1_000)]),  # kept for 30 days
        (False, [kept(60), *lived()[1:2], at(3, "act", name="cancel"), until(1_000)]),
        (True, [kept(60), *lived()[1:2], at(3, "act", "b", name="cancel"), until(1_000)]),
        (False, [*lived(), at(3, "act", name="delete")]),
        (False, [*lived(), at(3, "act", "", name="delete")]),  # many, unknown which
        (True, [*lived(), at(3, "act", "b", name="delete")]),
    ],
)
def test_an_acknowledged_job_without_a_row_is_a_violation(lost: bool, entries: list[Entry]) -> None:
    assert rules(entries) == ["acknowledged"] * lost


def test_a_job_that_waited_for_one_that_failed() -> None:
    failed = [*lived()[:-1], at(2, "settled", version=1, how="failed")]
    waiting = [kept(60, "b", after=["a"]), at(0.1, "stored", "b", "p"), until(100)]
    assert rules([*lived(), *waiting], [], expected={"b": None}) == ["acknowledged"]  # the row of a
    assert rules([*failed, *waiting]) == ["acknowledged"]


def test_a_signal_of_a_deleted_job() -> None:
    given = [at(1, "signal", name="s", text="1"), at(1, "signalled", name="s", text="1")]
    assert rules([kept(60), *lived()[1:], *given, until(100)]) == []
    assert sorted(rules([kept(600), *lived()[1:], *given, until(100)])) == ["acknowledged", "signal"]
