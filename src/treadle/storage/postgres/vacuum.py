"""Sweeping dead rows out of the tables that change most, by how much was done instead of by the minute.

Without it a claim would walk past all that was claimed since autovacuum last came by: at full speed that is a million
entries at the head of the line, and claims become four times as slow. Nobody waits for it, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from treadle.errors import TreadleError
from treadle.storage.postgres.connection import Runner

EVERY: Final = 100_000  # endings of this process; a sweep takes some 0.2 s, and claims are a quarter slower by then
# Who is not the owner is told so by the server in a warning, and nothing happens; nor where another sweep is under way.
SWEEP: Final = (
    "VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on) {schema}.job, {schema}.ticket, {schema}.edge, "
    "{schema}.slot, {schema}.start, {schema}.gate"
)


class Sweeper:
    """Counts endings, and sweeps beside the calls of the loop it is on."""

    def __init__(self, runner: Runner, every: int = EVERY) -> None:
        self._runner, self._every = runner, every
        self._count = 0
        self._sweep: asyncio.Task[None] | None = None

    def ended(self, jobs: int) -> None:
        self._count += jobs
        if self._count >= self._every and (self._sweep is None or self._sweep.done()):
            self._count = 0
            self._sweep = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        with contextlib.suppress(TreadleError):  # what is wrong with the server is said by the next verb
            await self._runner.run(SWEEP, [], often=False)

    async def close(self) -> None:
        """Let go of a sweep that is under way."""
        sweep, self._sweep = self._sweep, None
        if sweep is not None and not sweep.done():
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
