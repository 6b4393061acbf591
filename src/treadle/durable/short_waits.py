"""Short waits stay in memory: the run keeps its slot and continues, as a suspension and a replay would cost more.

The entry of a short wait is stored when it begins, like that of any other. So a worker that dies repeats nothing, and
the next run waits for the rest. Longer waits suspend the run.
"""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.durable.pending import Pending
from treadle.durable.state import DurableState

# The cost of a suspension and a wake, in seconds: on SQLite 4 to 13 ms on a busy machine, and a replay of each entry.
LONGEST: Final = 0.01
OF_ENTRY: Final = 5e-6


class ShortWaits:
    """The short waits of one run."""

    def __init__(self, run: DurableState) -> None:
        self._run = run
        self._last: float | None = None  # the end of the last one

    def fits(self, pending: Pending) -> bool:
        """Whether the run should wait for this in memory. False for a second wait until the same instant: the
        storage's clock does not move as this process's does, for example in a test."""
        run, until = self._run, pending.until
        if until is None or until == self._last:
            return False
        if until - run.latest_moment() > LONGEST + OF_ENTRY * len(run.checkpoints.entries):
            return False
        return run.backend.keeps(run.run)

    async def hold(self, pending: Pending) -> None:
        """Store what the wait needs, and wait. The caller looks again then."""
        run, until = self._run, pending.until
        assert until is not None
        self._last = until
        if run.checkpoints.unsaved:
            await run.backend.save(run.run)
        if pending.new:
            await run.backend.store_all(pending.new)
        await asyncio.sleep(until - run.moment())
