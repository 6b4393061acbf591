"""An order saga under every fault, while the failing call changes its mind between runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulate.fleets import FLEETS
from treadle.durable import Checkpoints
from treadle.testing import SimulationFailed, simulate
from treadle.testing.simulation import Fault
from treadle_testkit.shows import shows


def test_a_call_that_changes_its_mind_is_named_and_happens() -> None:
    report = simulate(**FLEETS["saga"] | {"faults": ["flips"]}, seeds=20)
    assert report.faults > 0
    assert str(Fault("flips", 1, 3)) == "call 3 of a step's function by worker 1 raises, and a later one does not"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
@shows("in a thousand simulated fleets with every fault a saga is booked or undone as a whole")
def test_sagas_of_a_thousand_seeds_are_done_or_undone(part: int) -> None:
    assert simulate(**FLEETS["saga"], seeds=range(100 * part, 100 * (part + 1))).seeds == 100


def test_a_history_without_failures_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was until November 2026: what a function caught was not stored."""

    def decide(self: Any, branch: object) -> None: ...

    monkeypatch.setattr(Checkpoints, "decide", decide)
    with pytest.raises(SimulationFailed, match="each_trip_is_booked_or_undone"):
        simulate(**FLEETS["saga"], seeds=50, shrink=False)
