"""Clocks that are wrong. Treadle keeps the clock it finds when it is imported, so `tests.soak.skewed` calls this first.

Where a server's clock decides, each process has a wrong clock of its own (`set_wrong`). Where the machine's clock
decides, all processes share one that is set while they work (`MachineClock`).
"""

from __future__ import annotations

import functools
import mmap
import random
import time
from collections import deque
from pathlib import Path

EVERY = 2.0  # s between two settings of a wrong clock
OFF = (-600.0, -3.0, 0.0, 3.0, 600.0)  # s by which it may be wrong
REMEMBERED = 10.0  # s for which a setting of the machine's clock counts in `most_ahead`: longer than a stall

true = time.time  # what histories are written by: they are compared with each other
_shared: memoryview | None = None  # of the machine's clock: how far it is ahead, and was within `REMEMBERED`


def set_wrong(seed: str) -> None:
    """Make `time.time` of this process wrong by one of `OFF`, which changes every few seconds."""

    @functools.lru_cache(maxsize=2)
    def off(setting: int) -> float:
        return random.Random(f"{seed} {setting}").choice(OFF)

    def wrong() -> float:
        return true() + off(int(time.monotonic() // EVERY))

    time.time = wrong


def follow(path: str) -> None:
    """From now on this process's `time.time` is the machine's clock in this file."""
    global _shared
    _shared = shared = _numbers(Path(path))

    def machine() -> float:
        return true() + float(shared[0])

    time.time = machine


def is_settable() -> bool:
    """Whether this process follows the machine's clock."""
    return _shared is not None


def most_ahead() -> float:
    """Seconds by which the machine's clock is ahead of the true time, or was within the last `REMEMBERED` seconds."""
    assert _shared is not None
    return float(_shared[1])


class MachineClock:
    """The clock of a machine. Each process that calls `follow` with its path has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(16))
        self._numbers = _numbers(path)
        self._before = deque([(true(), 0.0)])  # when it was set, and to what

    def set(self, ahead: float) -> float:
        """Set it so many seconds ahead of the true time. Returns by how much it steps."""
        now, step = true(), ahead - self._before[-1][1]
        self._before.append((now, ahead))
        while self._before[1][0] < now - REMEMBERED:  # the setting before that one ended too long ago
            self._before.popleft()
        self._numbers[1] = max(setting for _, setting in self._before)
        self._numbers[0] = ahead
        return step


def _numbers(path: Path) -> memoryview:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
