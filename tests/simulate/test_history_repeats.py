"""The rules on runs after the first one accept a history that keeps them, and find one that breaks them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.simulate.test_history import LEASE, at, lived, row
from treadle import App, Limit
from treadle.core.limit_model import LimitUse
from treadle.core.model import UPSTREAM, State
from treadle.testing import Simulation, simulate
from treadle.testing.history import check
from treadle.testing.history.entries import What


def rules(*parts: object) -> set[str]:
    return {each.rule for each in check(*parts, lease=LEASE)}  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [0, 1])
def test_each_lost_lease_counts(lost: int) -> None:
    entries = [*lived(version=2, begin=20, end=21), at(1, "claimed", version=1)]
    found = rules(entries, [replace(row(begin=20, end=21), version=3, lost=lost)])
    assert found == (set() if lost else {"lost"})


@pytest.mark.parametrize("what", ["again", "settled"])
@pytest.mark.parametrize("claimed", [0, 1])
def test_no_outcome_of_a_lost_run_is_reported_as_applied(what: What, claimed: int) -> None:
    entries = [
        at(1, "claimed", version=1),
        at(1, "began", version=1),
        at(2, "claimed", version=2 if claimed else 3),
        at(3, "ended", version=1, how="raised", text="no"),
        at(3, what, version=1),
        *lived(version=4, begin=20, end=21),
    ]
    found = rules(entries, [replace(row(begin=20, end=21), version=5, lost=2)])
    assert ("lost" in found) == bool(claimed)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_lost_lease_takes_back_no_attempt(attempt: int) -> None:
    again = lived(version=4, begin=20, end=21)
    entries = [*again, at(2, "claimed", version=3), at(2, "began", version=3, facts={"attempt": 2})]
    last = [each for each in entries if each.what == "began" and each.version == 4]
    kept = [replace(each, facts={"attempt": attempt}) if each in last else each for each in entries]
    found = rules(kept, [replace(row(begin=20, end=21), version=5, lost=1, attempt=3)])
    assert found == (set() if attempt == 2 else {"attempts", "guilt"})


@pytest.mark.parametrize(("begin", "broken"), [(4.5, False), (3.5, True)])
def test_a_job_runs_again_after_its_delay(begin: float, broken: bool) -> None:
    entries = [
        at(1, "claimed", version=1),
        at(1, "began", version=1),
        at(2, "ended", version=1, how="raised", text="no"),
        at(2.1, "again", version=1, seconds=2.0),
        *lived(version=3, begin=begin, end=5),
    ]
    assert rules(entries, [replace(row(begin=begin, end=5), version=4)]) == ({"delay"} if broken else set())


@pytest.mark.parametrize("answered", [1.5, 2.5])
def test_a_run_that_ends_after_a_cancel_does_not_count(answered: float) -> None:
    entries = [*lived(), at(1.2, "act", name="cancel"), at(answered, "acted", name="cancel", how="cancelled")]
    assert rules(entries, [row()]) == ({"cancel"} if answered < 2 else set())


@pytest.mark.parametrize("asked", [1.5, 3.0])
def test_no_call_gets_a_job_that_has_released_its_key(asked: float) -> None:
    entries = [*lived(), at(asked, "asked", "b", "q"), at(asked + 0.1, "stored", "b", "q", name="a")]
    entries = [replace(each, facts={"task": "t", "key": "k"}) if each.what == "asked" else each for each in entries]
    assert rules(entries, [row(key="k")]) == ({"key"} if asked > 2 else set())


def test_a_job_cancelled_for_its_upstream_has_one_that_did_not_succeed() -> None:
    down = replace(row("b", after=("a",)), state=State.CANCELLED, reason=UPSTREAM, result=None, started_at=None)
    entries = [*lived(), at(0, "asked", "b", "p"), at(0.1, "stored", "b", "p")]
    assert "upstream" in rules(entries, [row(), down])
    assert "upstream" not in rules(entries, [replace(row(), state=State.FAILED), down])


@pytest.mark.parametrize(("how", "most"), [("window", 1), ("bucket", 3)])
def test_a_cost_above_a_rate_counts_as_the_whole_rate(how: str, most: int) -> None:
    rule = Limit("r", rate=1, per=1.0, how=how, burst=3 if how == "bucket" else None)  # type: ignore[arg-type]
    job = row(limits=(("r", 5),))
    assert rules(lived(), [job], [LimitUse(key="r", rule=rule)]) == set()
    assert most == (rule.burst or rule.rate)


def test_the_simulation_records_acts_and_changes_of_limits_itself() -> None:
    app = App("memory://")
    app.limits.declare(Limit("one", slots=1), Limit("three", slots=3))

    @app.task
    async def slow(n: int) -> None:
        await asyncio.sleep(3)

    async def work(sim: Simulation) -> None:
        first = await slow.options(limits=["one"]).enqueue(1)
        for n in range(2):
            await slow.options(limits=["one"]).enqueue(n)
            await slow.options(limits=["three"]).enqueue(n)
        later = await slow.options(delay=60).enqueue(3)
        await asyncio.sleep(1)
        await app.jobs.cancel(first)
        await app.jobs.retry(first)
        await app.jobs.run_now(later)
        await app.limits.set(Limit("three", slots=1))

    simulate(app, work, faults=[], seeds=20)
