"""The queue of the memory storage, compared with a sorted list."""

from __future__ import annotations

import random

import pytest

from treadle.storage.memory import ordered
from treadle.storage.memory.ordered import Ordered


@pytest.mark.parametrize("seed", range(20))
def test_an_ordered_is_a_sorted_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "WIDTH", 4)
    rng, line, plain = random.Random(seed), Ordered(), list[ordered.Spot]()
    for n in range(600):
        if plain and rng.random() < (0.3 if n < 300 else 0.7):
            spot = plain.pop(0 if rng.random() < 0.5 else rng.randrange(len(plain)))
            line.remove(spot)
        else:
            spot = (float(rng.randrange(3)), float(rng.randrange(50)), f"{n:04}")
            plain.append(spot)
            plain.sort()
            line.add(spot)
        assert len(line) == len(plain)
        wanted = (float(rng.randrange(4)), float("-inf"), "")
        assert line.first_from(wanted) == next((each for each in plain if each >= wanted), None)
        if n % 20 == 0:
            assert [line[at] for at in range(len(line))] == plain
    with pytest.raises(IndexError):
        line[len(line)]
