"""Logs a storage outage once when it begins and once when it ends, and delays the retries with growing pauses.

A call that another transaction holds up is no outage: the storage answers, and other calls go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from treadle.core.errors import Locked
from treadle.policy.retry import Retry

log = logging.getLogger("treadle")

LOCKED = 0.25  # s between two tries of a call that another transaction holds up
VITAL = ("open", "beat", "dispatcher")  # the loops that a worker needs in order to run jobs; others may fail alone
STOPPING: Final = 0.5  # s between two tries of a worker that stops, at most


class StorageOutage:
    """The loops of one worker share it. An outage begins with the first call that fails, and ends when every loop that
    failed has received an answer again.

    vital  how the names of those loops begin without which the worker is not ready
    """

    def __init__(
        self,
        worker: str,
        retry: Retry,
        random: Callable[[], float],
        emit: Callable[[str, BaseException | None], None],
        vital: tuple[str, ...] = VITAL,
    ) -> None:
        self._worker, self._retry, self._random, self._emit, self._vital = worker, retry, random, emit, vital
        self._failing: dict[str, int] = {}  # loop -> failures in a row
        self._locked: set[str] = set()  # loops whose call another transaction holds up
        self._since: dict[str, float] = {}  # vital loop -> the event loop's time of the first of them
        self.over = asyncio.Event()  # set when an outage ends, or the storage may be empty; the waiting loop clears it
        self._give_up_at: float | None = None  # the event loop's time; set when the worker stops
        self._stops = asyncio.Event()

    def stop(self, give_up_at: float) -> None:
        """The worker stops: try again at once, and until this time of the event loop."""
        self._give_up_at = give_up_at
        self._stops.set()

    async def failed(self, loop: str, error: BaseException) -> None:
        """Record a failed call of this loop, and return when the loop may try again. Raises the error after
        `give_up_at` of `stop`."""
        if self._give_up_at is not None and asyncio.get_running_loop().time() > self._give_up_at:
            raise error
        if isinstance(error, Locked):
            if not self._locked:
                log.warning("worker %s: %s; retrying", self._worker, error)
            self._locked.add(loop)
            await asyncio.sleep(LOCKED)
            return
        if not self._failing:
            log.warning("worker %s: storage unavailable (%s); retrying", self._worker, error)
            self._emit("worker.error", error)
        if loop.startswith(self._vital):
            self._since.setdefault(loop, asyncio.get_running_loop().time())
        failures = self._failing[loop] = self._failing.get(loop, 0) + 1
        delay = self._retry.delay(min(failures, 30), self._random())
        if self._stops.is_set():
            await asyncio.sleep(min(delay, STOPPING))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stops.wait()

    def answered(self, loop: str) -> None:
        """Record that the storage answered this loop."""
        self._locked.discard(loop)
        if not self._failing:
            return
        self._since.pop(loop, None)
        if self._failing.pop(loop, 0) and not self._failing:
            log.warning("worker %s: storage available again", self._worker)
            self._emit("worker.recovered", None)
            self.over.set()

    @property
    def away(self) -> float | None:
        """Seconds for which a vital loop has failed; None: all of them work."""
        if not self._since:
            return None
        return asyncio.get_running_loop().time() - min(self._since.values())
