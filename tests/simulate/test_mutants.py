"""Each defect that is put back is found by the simulation; without the defect the same seeds find nothing.

docs/guarantees.md says after how many seeds.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest

from tests.simulate.fleets import FLEETS
from tests.simulate.guilt_mutants import GUILT
from tests.simulate.mutants import MIXED, ORDERLY
from tests.simulate.repeat_mutants import REPEATS
from treadle.testing import SimulationFailed, simulate

pytestmark = pytest.mark.slow

SOON = 100  # seeds within which most are found
LATER = {"L-1": 300}
FROM = {"E-A14": 600, "costly passed": 650, "siblings pruned": 230}  # the first seed: those before it find nothing
ONLY = {"E-A14": ["clock"]}  # the faults of its seeds: among all faults it is found by one seed in a thousand
RARE = {"O-3": 1_500, "C-2": 1_500, "signal twice": 1_500}  # those that need two events at the same time
RARE_REPEATS = {"retry overtaken": 3_000, "turn lost": 3_000}

# defect -> the rules of which one has to find it
RULES = {
    "signal lost": {"signal"},
    "delay": {"delay"},
    "priority": {"priority"},
    "lane": {"lane"},
    "tick twice": {"tick"},
    "tick early": {"tick"},
    "tick left out": {"invariant"},
    "bound": {"bound"},
    "counts": {"counts"},
    "resources": {"resources"},
    "labels": {"labels"},
}


def finds(fleet: str, seeds: int, rules: Container[str] | None = None, *, first: int = 0, **settings: Any) -> bool:
    """Whether one of so many seeds, from the first on, breaks one of the rules, or any rule."""
    end = first + seeds
    while first < end:
        try:
            simulate(**FLEETS[fleet] | settings, seeds=range(first, end), shrink=False)
        except SimulationFailed as failure:
            if rules is None or any(each.rule in rules for each in failure.found.violations):
                return True
            first = failure.found.case.seed + 1
        else:
            break
    return False


@pytest.mark.parametrize("name", sorted(MIXED.keys() - RARE.keys()))
def test_a_defect_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MIXED[name](monkeypatch)
    settings = {"faults": ONLY[name]} if name in ONLY else {}
    assert finds("mixed", LATER.get(name, SOON), RULES.get(name), first=FROM.get(name, 0), **settings)


@pytest.mark.parametrize("name", sorted(ORDERLY))
def test_a_promise_that_is_broken_is_found_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ORDERLY[name](monkeypatch)
    assert finds("orderly", SOON, RULES[name])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in RARE_REPEATS else name for name in sorted(REPEATS)]
)
def test_a_defect_of_a_repeated_run_is_found_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, rules = REPEATS[name]
    plant(monkeypatch)
    assert finds("repeats", RARE_REPEATS.get(name, SOON), rules, first=FROM.get(name, 0))


@pytest.mark.parametrize("name", sorted(GUILT))
def test_a_defect_by_which_the_innocent_pay_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    GUILT[name](monkeypatch)
    assert finds("poison", SOON, {"guilt"})


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RARE))
def test_a_rare_defect_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MIXED[name](monkeypatch)
    assert finds("mixed", RARE[name])
