"""A process whose clock is wrong. The soak thus shows that only the storage's clock decides.

Treadle keeps the clock it finds when it is imported, so `tests.soak.skewed` calls `set_wrong` before that.
"""

from __future__ import annotations

import functools
import random
import time

EVERY = 2.0  # s between two settings of a wrong clock
OFF = (-600.0, -3.0, 0.0, 3.0, 600.0)  # s by which it may be wrong

true = time.time  # what histories are written by: they are compared with each other


def set_wrong(seed: str) -> None:
    """From now on this process's `time.time` is off by one of `OFF`, and set anew every few seconds, ahead or back."""

    @functools.lru_cache(maxsize=2)
    def off(setting: int) -> float:
        return random.Random(f"{seed} {setting}").choice(OFF)

    def wrong() -> float:
        return true() + off(int(time.monotonic() // EVERY))

    time.time = wrong
