"""Each defect that is put back is found by the simulation; without the defect the same seeds find nothing.

docs/guarantees.md says after how many seeds.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulate.fleets import FLEETS
from tests.simulate.mutants import MIXED, ORDERLY
from tests.simulate.repeat_mutants import REPEATS
from treadle.testing import SimulationFailed, simulate

pytestmark = pytest.mark.slow

SOON = 100  # seeds within which most are found
LATER = {"L-1": 300}
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


def found(fleet: str, seeds: int, **settings: Any) -> set[str]:
    """The rules that the first failing seed breaks."""
    with pytest.raises(SimulationFailed) as failure:
        simulate(**FLEETS[fleet] | settings, seeds=seeds, shrink=False)
    return {each.rule for each in failure.value.found.violations}


@pytest.mark.parametrize("name", sorted(MIXED.keys() - RARE.keys()))
def test_a_defect_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MIXED[name](monkeypatch)
    settings = {"faults": ONLY[name]} if name in ONLY else {}
    rules = found("mixed", LATER.get(name, SOON), **settings)
    assert name not in RULES or rules & RULES[name]


@pytest.mark.parametrize("name", sorted(ORDERLY))
def test_a_promise_that_is_broken_is_found_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ORDERLY[name](monkeypatch)
    assert found("orderly", SOON) & RULES[name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in RARE_REPEATS else name for name in sorted(REPEATS)]
)
def test_a_defect_of_a_repeated_run_is_found_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, rules = REPEATS[name]
    plant(monkeypatch)
    assert found("repeats", RARE_REPEATS.get(name, SOON)) & rules


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RARE))
def test_a_rare_defect_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MIXED[name](monkeypatch)
    found("mixed", RARE[name])
