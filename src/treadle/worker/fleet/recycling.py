"""When a worker process is replaced by a new one: after a number of jobs, an age, or at a size of its memory.

The limits of jobs and age are drawn up to 10 % lower for each process, so that processes that started together are not
replaced together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from treadle.core.words import lasts, size
from treadle.worker.fleet.messages import Vitals

JITTER: Final = 0.1  # share of a limit that is subtracted at most
SETTLED: Final = 60.0  # s that a process claims at least if it was above the limit of memory before its first job
RESTART_STUCK: Final = 300.0  # s; longer than any honest computation under the interpreter's lock
DRAIN: Final = 3_600.0  # s that the jobs of a replaced process get to end


@dataclass(frozen=True)
class Recycling:
    """The limits of each worker process; None: no limit.

    max_jobs       jobs that it starts
    max_age        seconds since it started to claim
    max_memory     bytes of its resident memory
    drain          seconds that its running jobs get to end when it is replaced
    restart_stuck  seconds without an answer of its event loop after which it is killed; None: never
    """

    max_jobs: int | None = None
    max_age: float | None = None
    max_memory: int | None = None
    drain: float = DRAIN
    restart_stuck: float | None = RESTART_STUCK

    def drawn(self, draw: Callable[[], float] = random.random) -> Recycling:
        """The limits of one process. `draw` returns a number from 0 to 1."""
        share = 1.0 - JITTER * draw()
        return replace(
            self,
            max_jobs=self.max_jobs and max(1, round(self.max_jobs * share)),
            max_age=self.max_age and self.max_age * share,
        )

    def too_small(self, idle: int) -> bool:
        """Whether a process with this memory before its first job is above the limit, so that each new one is."""
        return self.max_memory is not None and idle >= self.max_memory

    def reason(self, vitals: Vitals, age: float, idle: int = 0) -> str | None:
        """Why a process with these vitals is due to be replaced; None if it is not.

        age   seconds since it claims
        idle  its memory before its first job
        """
        jobs = vitals.health.started
        if self.max_jobs is not None and jobs >= self.max_jobs:
            return f"it has started {jobs:,} jobs"
        if self.max_age is not None and age >= self.max_age:
            return f"it is {lasts(age)} old"
        if (
            self.max_memory is not None
            and vitals.memory >= self.max_memory
            and (age >= SETTLED or not self.too_small(idle))
        ):
            return f"it uses {size(vitals.memory)} of memory"
        return None
