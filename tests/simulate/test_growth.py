"""A process that has run a fleet keeps nothing of it."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.simulate.fleets import FLEETS
from treadle.testing import simulate

SEEDS = 40


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
def test_runs_leave_no_objects(fleet: str) -> None:
    """The first runs fill caches. Fewer objects remain of the others than there were runs."""
    counts: list[Counter[str]] = []
    for first in (0, SEEDS):
        simulate(**FLEETS[fleet], seeds=range(first, first + SEEDS))
        gc.collect()
        counts.append(Counter(type(each).__name__ for each in gc.get_objects()))
    grown = counts[1] - counts[0]
    assert grown.total() < SEEDS, grown.most_common(10)
