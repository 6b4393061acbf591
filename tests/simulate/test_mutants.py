"""Each defect that is put back is found by the simulation; without it the same seeds find nothing.

Found after so many seeds on 23 November 2026: O-1 1, S-10 1, E-A14 2, U-F10 2, C-1 6, C-7 9, S-5 9, L-1 32, O-3 331,
C-2 356.
"""

from __future__ import annotations

import pytest

from tests.simulate.mix import INVARIANTS, app, work
from tests.simulate.mutants import MUTANTS
from treadle.testing import SimulationFailed, simulate

SOON = 100  # seeds within which most are found
RARE = {"O-3": 1_500, "C-2": 1_500}  # those that need two things at the same moment


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - RARE.keys()))
def test_a_defect_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(SimulationFailed):
        simulate(app, work, invariants=INVARIANTS, seeds=SOON, shrink=False)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RARE))
def test_a_rare_defect_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(SimulationFailed):
        simulate(app, work, invariants=INVARIANTS, seeds=RARE[name], shrink=False)
