"""A process whose clock is wrong. The soak thus shows that only the storage's clock decides.

Treadle keeps the clock that it finds at import, so `tests.soak.skewed` calls `set_wrong` before it imports Treadle.
"""

from __future__ import annotations

import functools
import random
import time

EVERY = 2.0  # seconds between two changes of a wrong clock
OFF = (-600.0, -3.0, 0.0, 3.0, 600.0)  # seconds by which a clock may be wrong

true = time.time  # the clock of the histories, because they are compared with each other


def set_wrong(seed: str) -> None:
    """Make `time.time` of this process wrong by one of `OFF`, which changes every few seconds."""

    @functools.lru_cache(maxsize=2)
    def off(setting: int) -> float:
        return random.Random(f"{seed} {setting}").choice(OFF)

    def wrong() -> float:
        return true() + off(int(time.monotonic() // EVERY))

    time.time = wrong
