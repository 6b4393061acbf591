"""Sweeping dead rows out of the tables that change most, by what they cost the claims instead of by the minute.

Without it a claim would walk past all that has left the line since autovacuum last came by: at full speed that is a
million entries at its head, and claims become four times as slow. Nobody waits for it, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from treadle.errors import TreadleError
from treadle.storage.postgres.connection import Runner

LEAST, MOST = 2_000, 100_000  # rows that have left the line since the last sweep: not before, and not later
WALK: Final = 6e-9  # s a claim spends on each of them: 100,000 add 0.6 ms, measured
PRICE: Final = (0.05, 0.2)  # s a sweep takes: believed at least, and at first
# Who is not the owner is told so by the server in a warning, and nothing happens; nor where another sweep is under way.
SWEEP: Final = (
    "VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on) {schema}.job, {schema}.ticket, {schema}.edge, "
    "{schema}.slot, {schema}.start, {schema}.gate"
)


class Sweeper:
    """Sweeps when the claims of this process have walked for as long as a sweep takes: so neither costs more than twice
    what is best, whether a claim takes one job or hundreds. Beside the calls of the loop it is on."""

    def __init__(self, runner: Runner, most: int = MOST) -> None:
        self._runner, self._most = runner, most
        self._dead, self._walked = 0, 0.0
        self._price = PRICE[1]  # s
        self._sweep: asyncio.Task[None] | None = None

    def claimed(self, left: int) -> None:
        """A claim was made, by which so many left the line: taken, or stepped aside."""
        self._walked += self._dead * WALK
        self._dead += left
        due = self._dead >= self._most or (self._dead >= LEAST and self._walked >= self._price)
        if due and (self._sweep is None or self._sweep.done()):
            self._dead, self._walked = 0, 0.0
            self._sweep = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        began = time.perf_counter()
        try:
            await self._runner.run(SWEEP, [], often=False)
        except TreadleError:
            # What is wrong with the server is said by the next verb. Tables too large to be swept within the time of a
            # call are autovacuum's: it is tried ever less often.
            self._price, self._most = 2 * self._price, 2 * self._most
        else:
            self._price, self._most = max(time.perf_counter() - began, PRICE[0]), MOST

    async def close(self) -> None:
        """Let go of a sweep that is under way."""
        sweep, self._sweep = self._sweep, None
        if sweep is not None and not sweep.done():
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
