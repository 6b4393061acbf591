"""Sweeping dead rows out of the tables that change most, by what they cost the claims instead of by the minute.

Without it a claim would walk past all that has left the line since autovacuum last came by: at full speed that is a
million entries at its head, and claims become four times as slow. Nobody waits for it, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from treadle.core.model import Claim, Record
from treadle.errors import TreadleError
from treadle.storage.postgres.pool import Pool
from treadle.storage.postgres.scan_floor import Floor, ScanFloor

LEAST, MOST = 2_000, 100_000  # rows that have left the line since the last sweep: not before, and not later
FIRST: Final = 20_000  # not later the first time, to learn whether rows are held back
WALK: Final = 6e-9  # s a claim spends on each of them: 100,000 add 0.6 ms, measured
PRICE: Final = (0.05, 0.2)  # s a sweep takes: believed at least, and at first
# Who is not the owner is told so by the server in a warning, and nothing happens; nor where another sweep is under way.
SWEEP: Final = (
    "VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on) {schema}.job, {schema}.ticket, {schema}.edge, "
    "{schema}.slot, {schema}.start, {schema}.gate"
)
# Those somebody may still see: an old snapshot is open.
LEFT: Final = "SELECT pg_stat_get_dead_tuples('{schema}.job'::regclass)"


class VacuumPacer:
    """Sweeps when the claims of this process have walked for as long as a sweep takes: so neither costs more than twice
    what is best, whether a claim takes one job or hundreds. Beside the calls of the loop it is on."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._head = ScanFloor()
        self._dead, self._walked = 0, 0.0
        self._price, self._most = PRICE[1], FIRST  # s, rows
        self._sweep: asyncio.Task[None] | None = None

    def floors(self, ask: Claim) -> dict[str, Floor] | None:
        """Where a claim may begin to look."""
        return self._head.floors(ask)

    def claimed(self, ask: Claim, floors: dict[str, Floor] | None, records: Sequence[Record], aside: int) -> None:
        """A claim was made: these left the line by it, and so many who stepped aside."""
        self._head.claimed(ask, floors, records)
        if floors is None:
            self._walked += self._dead * WALK
        self._dead += len(records) + aside
        due = self._dead >= self._most or (self._dead >= LEAST and self._walked >= self._price)
        if due and (self._sweep is None or self._sweep.done()):
            self._dead, self._walked = 0, 0.0
            self._sweep = asyncio.Task(self._run())

    async def _run(self) -> None:
        began = time.perf_counter()
        try:
            await self._pool.run_alone(SWEEP)  # heartbeats need the pool meanwhile
            took = time.perf_counter() - began
            [(held,)] = await self._pool.run(LEFT, [], often=False)
        except TreadleError:
            # What is wrong with the server is said by the next verb. Tables too large to be swept within the time of a
            # call are autovacuum's: it is tried ever less often.
            self._price, self._most = 2 * self._price, 2 * self._most
        else:
            self._price, self._most = max(took, PRICE[0]), MOST
            self._head.swept(held)

    async def close(self) -> None:
        """Let go of a sweep that is under way."""
        sweep, self._sweep = self._sweep, None
        if sweep is not None and not sweep.done():
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
