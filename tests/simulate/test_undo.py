"""Trips that register undos, cancelled and expired at any moment of a fleet with faults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulate.fleets import FLEETS
from treadle.testing import SimulationFailed, simulate
from treadle_testkit.shows import shows


@pytest.mark.slow
@shows("a trip is booked or undone as a whole, whatever cancels or expires it and whichever workers are killed")
@pytest.mark.parametrize("part", range(10))
def test_trips_of_a_thousand_seeds_are_booked_or_undone(part: int) -> None:
    assert simulate(**FLEETS["undo"], seeds=range(100 * part, 100 * (part + 1))).seeds == 100


def test_a_cleanup_that_does_not_wait_for_the_cancelled_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def remaining_lease(*_: Any) -> float:
        return 0.0

    monkeypatch.setattr("treadle.worker.cleanups.cleanups.remaining_lease", remaining_lease)
    with pytest.raises(SimulationFailed, match="each_trip_is_booked_or_undone"):
        simulate(**FLEETS["undo"] | {"faults": ()}, seeds=50, shrink=False)
