"""The time of the log: a clock that all processes share, and that does not go back from one entry to the next."""

from __future__ import annotations

from typing import Final

from treadle.core import clock
from treadle.storage.composed.port_calls import Port

SKEW: Final = 5.0  # seconds by which the clocks of processes may differ before the time of the log goes back
SYNC: Final = 30.0  # seconds between readings of the store's clock; meanwhile our own clock continues it


class LogClock:
    """Reads `given` if there is one, otherwise the store's clock, and without that this machine's."""

    def __init__(self, given: clock.Clock | None, store: Port) -> None:
        self._given, self._store = given, store
        self._read_at: tuple[float, float] | None = None  # our monotonic clock and the store's clock at the same moment

    async def now(self, last: float) -> float:
        """The current time, or the time of the last entry if that is up to `SKEW` seconds ahead."""
        now = self._given() if self._given is not None else await self._store_time()
        return last if now < last <= now + SKEW else now

    async def _store_time(self) -> float:
        if not self._store.has("now"):
            return clock.wall()
        here = clock.monotonic()
        if self._read_at is None or here - self._read_at[0] > SYNC:
            there = float(await self._store(self._store.port.now))
            self._read_at = (here + clock.monotonic()) / 2, there
        return self._read_at[1] + clock.monotonic() - self._read_at[0]
