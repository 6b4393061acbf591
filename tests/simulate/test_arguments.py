"""Arguments of `simulate` that would let it pass without testing anything are refused, with a sentence."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from treadle import App, BadOption
from treadle.testing import Simulation, SimulationFailed, simulate
from treadle.testing.simulation import Report

app = App("memory://")


@app.task
async def double(n: int) -> int:
    return 2 * n


async def scenario(sim: Simulation) -> None:
    sim.expect(await sim.again(lambda: double.enqueue(4)), "8")


async def never_awaited(sim: Simulation) -> None:
    raise AssertionError


async def never_iterated(sim: Simulation) -> AsyncIterator[int]:
    yield 1


def never_advanced(sim: Simulation) -> Iterator[int]:
    yield 1


class AsCall:
    async def __call__(self, sim: Simulation) -> None: ...


async def told(report: Report) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"invariants": [never_awaited]}, "never_awaited is a coroutine function, which nothing awaits: write `def`"),
        ({"invariants": [functools.partial(never_awaited)]}, "is a coroutine function"),
        ({"invariants": [AsCall()]}, "is a coroutine function"),
        ({"invariants": [never_iterated]}, "is a coroutine function"),
        ({"invariants": [never_advanced]}, "never_advanced contains `yield`"),
        ({"invariants": [lambda sim: never_awaited(sim=sim)]}, "returned <coroutine object never_awaited"),
        ({"invariants": never_awaited}, "expected a list of functions such as"),
        ({"invariants": ["nobody pays twice"]}, "expected functions of the simulation, found 'nobody pays twice'"),
        ({"progress": told}, "told is a coroutine function"),
        ({"seeds": -1}, "expected how many, such as 200, or which ones, such as [17]; found -1"),
        ({"seeds": 0}, "found 0"),
        ({"seeds": True}, "found True"),
        ({"seeds": 2.5}, "found 2.5"),
        ({"seeds": "17"}, "found '17'"),
        ({"seeds": []}, "found none, so nothing would be tested"),
        ({"seeds": iter(())}, "found none, so nothing would be tested"),
        ({"seeds": [1, "2"]}, "seed number 2 is '2'"),
        ({"faults": "kill"}, """expected a list such as ["kill", "lost"], or [] for none; found 'kill'"""),
        ({"faults": None}, "found None"),
        (
            {"faults": ["fire", 3]},
            "stop, stall, before, lost, twice, cut, clock, flips, found fire, 3",
        ),
        ({"most_faults": -1}, "expected 0 or more, found -1"),
        ({"workers": 0}, "expected 1 or more, found 0"),
        ({"workers": 2.5}, "expected 1 or more, found 2.5"),
        ({"size": 0}, "expected 1 or more, found 0"),
        ({"concurrency": 0}, "expected 1 or more, found 0"),
        ({"lease": 0}, "expected seconds, more than 0, found 0"),
        ({"patience": float("inf")}, "expected seconds, more than 0, found inf"),
        ({"storage": "redis"}, "expected memory or sqlite, found 'redis'"),
        ({"options": {"lease": 3}}, "lease cannot be set here: use lease= of simulate"),
        ({"options": {"polls": 3}}, "unknown argument polls=; did you mean poll=?"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadOption) as caught:
        simulate(app, scenario, **{"seeds": 3, **wrong})
    assert sentence in str(caught.value)


def test_a_scenario_that_is_no_coroutine_function_is_refused() -> None:
    def plain(sim: Simulation) -> None: ...

    wrong: Any = plain
    with pytest.raises(BadOption, match=r"scenario.: expected a coroutine function, `async def buy.sim.:`"):
        simulate(app, wrong, seeds=1)


@pytest.mark.parametrize("wrong", [None, "shop:app", lambda: None])
def test_an_object_that_is_no_app_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match="expected an App, or a function that makes one for each seed; found"):
        simulate(wrong, scenario, seeds=1)


def test_no_scenario_is_refused() -> None:
    wrong: Any = None
    with pytest.raises(BadOption, match="expected a coroutine function"):
        simulate(app, wrong, seeds=1)


def test_a_value_that_is_not_encoded_is_refused() -> None:
    async def wrong(sim: Simulation) -> None:
        value: Any = 8
        sim.expect(await double.enqueue(4), value)

    with pytest.raises(SimulationFailed, match="""expected the encoded value, such as "42" or '"paid"', found 8"""):
        simulate(app, wrong, seeds=1, faults=[])


def test_a_process_needs_a_name_and_a_coroutine() -> None:
    async def wrong(sim: Simulation) -> None:
        work: Any = double.enqueue(4)
        sim.spawn(work, "operator")  # type: ignore[arg-type]

    with pytest.raises(SimulationFailed, match=r"expected a name and a coroutine, found <coroutine .* and 'operator'"):
        simulate(app, wrong, seeds=1, faults=[])


def test_a_coroutine_cannot_be_repeated() -> None:
    async def wrong(sim: Simulation) -> None:
        call: Any = double.enqueue(4)
        await sim.again(call)

    with pytest.raises(SimulationFailed, match="a coroutine can run only once: give a function, `lambda:"):
        simulate(app, wrong, seeds=1, faults=[])


def test_an_invariant_may_return_whether_it_holds() -> None:
    assert simulate(app, scenario, seeds=2, invariants=[lambda sim: len(sim.rows) == 1]).seeds == 2

    def too_many(sim: Simulation) -> bool:
        return len(sim.rows) > 1

    with pytest.raises(SimulationFailed, match="invariant: too_many: it returned False"):
        simulate(app, scenario, seeds=2, invariants=[too_many])
