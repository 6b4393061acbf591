"""Vacuums the tables that change most, as soon as dead rows cost the claims as much time as a vacuum.

A claim reads past all index entries of jobs that have left the queue since the last vacuum. With autovacuum alone these
are a million at full speed, and claims become four times as slow. No call waits for a vacuum or depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

from treadle.core.errors import TreadleError
from treadle.core.model import Claim, Record
from treadle.storage.postgres.pool import Pool
from treadle.storage.postgres.scan_floor import Floor, ScanFloor

LEAST, MOST = 2_000, 100_000  # jobs that have left the queue since the last vacuum: not before, and not later
FIRST: Final = 20_000  # the first vacuum is no later than this, to learn whether rows are held back
WALK: Final = 6e-9  # s a claim spends on each of them: 100,000 add 0.6 ms, measured
PRICE: Final = (0.05, 0.2)  # s a vacuum takes: the least that is assumed, and the first assumption
# If we do not own a table, the server only warns. It skips a table that another vacuum is processing.
SWEEP: Final = (
    "VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on) {schema}.job, {schema}.recent_claim, {schema}.edge, "
    "{schema}.slot, {schema}.start, {schema}.gate, {schema}.recheck, {schema}.count_change"
)
# Dead rows that a vacuum left, because an old snapshot may still see them.
LEFT: Final = "SELECT pg_stat_get_dead_tuples('{schema}.job'::regclass)"


class VacuumPacer:
    """Vacuums when the claims of this process have spent as much time on dead entries as a vacuum takes. Neither then
    costs more than twice the optimum, whether a claim takes one job or hundreds. It runs concurrently with other
    calls."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._head = ScanFloor()
        self._dead, self._walked = 0, 0.0
        self._price, self._most = PRICE[1], FIRST  # s, rows
        self._sweep: asyncio.Task[None] | None = None

    def floors(self, ask: Claim) -> dict[str, Floor] | None:
        """Where a claim may begin to scan."""
        return self._head.floors(ask)

    def claimed(self, ask: Claim, floors: dict[str, Floor] | None, records: Sequence[Record], blocked: int) -> None:
        """A claim took these jobs out of the queue, and blocked `blocked` others."""
        self._head.claimed(ask, floors, records)
        if floors is None:
            self._walked += self._dead * WALK
        self._dead += len(records) + blocked
        due = self._dead >= self._most or (self._dead >= LEAST and self._walked >= self._price)
        if due and (self._sweep is None or self._sweep.done()):
            self._dead, self._walked = 0, 0.0
            self._sweep = asyncio.Task(self._run())

    async def _run(self) -> None:
        began = time.perf_counter()
        try:
            await self._pool.run_alone(SWEEP)  # meanwhile heartbeats need the pool
        except TreadleError:
            # The next verb reports what is wrong with the server. Tables too large to be vacuumed within the timeout of
            # a call are left to autovacuum: each failure doubles the interval.
            self._price, self._most = 2 * self._price, 2 * self._most
            return
        self._price, self._most = max(time.perf_counter() - began, PRICE[0]), MOST
        with contextlib.suppress(TreadleError):
            [(held,)] = await self._pool.run(LEFT, [], often=False)
            self._head.swept(held)

    async def close(self) -> None:
        """Cancel a vacuum in progress."""
        sweep, self._sweep = self._sweep, None
        if sweep is not None and not sweep.done():
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
