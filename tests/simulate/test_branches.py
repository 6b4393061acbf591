"""Functions that await children under every fault: they decide once, and no child remains."""

from __future__ import annotations

import pytest

from tests.simulate.fleets import FLEETS
from treadle.testing import simulate


def test_children_races_and_time_limits_under_faults() -> None:
    assert simulate(**FLEETS["branches"], seeds=range(200, 205)).seeds == 5


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_children_of_five_hundred_seeds(part: int) -> None:
    assert simulate(**FLEETS["branches"], seeds=range(100 * part, 100 * (part + 1))).seeds == 100
