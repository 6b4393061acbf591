"""Reads what is stored for scrapers: one read at a time for all of them, kept for some seconds.

A scrape is answered within seconds, even while the storage is slow or away: with the last values and their age.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from treadle.concurrency.spawn import started
from treadle.core.clock import monotonic
from treadle.core.errors import StorageError, TreadleError
from treadle.server.prometheus.stored import Reading, Scrape

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.outbox import Outbox, OutboxStats

log = logging.getLogger("treadle")

FRESH: Final = 15.0  # s for which values are kept; the usual interval of scrapers
AGAIN: Final = 2.0  # s before a failed read is repeated
PATIENCE: Final = 4.0  # s that a scrape waits for a read; Prometheus gives up after 10
OUTBOX: Final = 3.0  # s that the database of the outbox has to answer
LONGEST: Final = 60.0  # s of a read, then it is cancelled


class StoredReader:
    """The reads of one app. Its methods run on the event loop of the app.

    now, patience  for tests: the clock; the seconds that a scrape waits for a read
    """

    def __init__(self, core: AppCore, now: Callable[[], float] = monotonic, patience: float = PATIENCE) -> None:
        self._core, self._now, self._patience = core, now, patience
        self._reading: Reading | None = None
        self._read_at = self._tried_at = 0.0  # times of that clock
        self._error: str | None = None
        self._outage = False
        self._running: asyncio.Task[None] | None = None
        core.when_closing.append(self.close)

    async def scrape(self) -> Scrape:
        """The values, not older than `FRESH` seconds if the storage answers in time."""
        loop = asyncio.get_running_loop()
        if self._running is not None and self._running.get_loop() is not loop:
            self._running = None  # its loop has ended
        if self._running is None and self._is_due(self._now()):
            self._running = started(self._read(), loop=loop)
        late = False
        if self._running is not None:
            late = not (await asyncio.wait([self._running], timeout=self._patience))[0]
        error = f"no answer in {self._patience:g} s" if late else self._error
        return Scrape(
            reading=self._reading,
            age=max(0.0, self._now() - self._read_at) if self._reading is not None else 0.0,
            up=error is None,
            error=error,
        )

    def _is_due(self, now: float) -> bool:
        if self._error is not None:
            return now - self._tried_at >= AGAIN
        return self._reading is None or now - self._read_at >= FRESH

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(LONGEST):
                reading = await read_stored(self._core)
        except Exception as error:  # also a fault of ours: the next scrape reads again
            self._failed(error)
        else:
            if self._outage:
                log.warning("metrics: storage available again")
            self._reading, self._read_at, self._error, self._outage = reading, self._now(), None, False
        finally:
            self._tried_at, self._running = self._now(), None

    def _failed(self, error: Exception) -> None:
        self._error = str(error) or f"no answer in {LONGEST:g} s"
        if not self._outage:
            is_known = isinstance(error, TreadleError | TimeoutError)
            log.warning(
                "metrics: storage unavailable (%s); retrying", self._error, exc_info=None if is_known else error
            )
        self._outage = True

    async def close(self) -> None:
        """End a read under way."""
        running, self._running = self._running, None
        if running is not None and running.get_loop() is asyncio.get_running_loop():
            running.cancel()
            await asyncio.wait([running])


async def read_stored(core: AppCore) -> Reading:
    """Read everything that is stored. Raises StorageError."""
    began = monotonic()
    stats = await core.queues.stats()
    schedules = None if core.storage.capabilities.queues else await core.schedules.list()
    took = monotonic() - began
    outbox, outbox_up = await _outbox(core.choice.outbox)
    return Reading(
        stats=stats,
        schedules=schedules,
        outbox=outbox,
        outbox_up=outbox_up,
        queues=sorted({task.queue for task in core.declared.values()}),
        took=took,
    )


async def _outbox(outbox: Outbox | None) -> tuple[OutboxStats | None, bool | None]:
    """The rows of the outbox. Its database may be away while the storage answers."""
    if outbox is None:
        return None, None
    try:
        async with asyncio.timeout(OUTBOX):
            return await outbox.stats(), True
    except (StorageError, TimeoutError) as error:
        log.debug("metrics: the outbox does not answer: %s", error)
        return None, False
