"""When the storage is away: said once, tried again after growing pauses, and said once more when it is over.

Without it each loop of a worker would tell of the same outage at every try, and none would know when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from treadle.policy.retry import Retry

log = logging.getLogger("treadle")


class StorageOutage:
    """What the loops of one worker share about it. It begins with the first call that fails, and is over when every
    loop that failed has been answered again."""

    def __init__(
        self, worker: str, retry: Retry, chance: Callable[[], float], tell: Callable[[str, BaseException | None], None]
    ) -> None:
        self._worker, self._retry, self._chance, self._tell = worker, retry, chance, tell
        self._failing: dict[str, int] = {}  # loop -> how often in a row
        self.over = asyncio.Event()  # set when it ends, or the storage may have been emptied; who waits clears it
        self.give_up_at: float | None = None  # by the loop's clock; a worker that stops does not wait for ever

    async def failed(self, loop: str, error: BaseException) -> None:
        """The storage failed in this loop, which may try again when this returns. Raises the error at the end of all
        patience."""
        if self.give_up_at is not None and asyncio.get_running_loop().time() > self.give_up_at:
            raise error
        if not self._failing:
            log.warning("worker %s: the storage does not answer; trying on (%s)", self._worker, error)
            self._tell("worker.error", error)
        times = self._failing[loop] = self._failing.get(loop, 0) + 1
        await asyncio.sleep(self._retry.delay(min(times, 30), self._chance()))

    def answered(self, loop: str) -> None:
        """The storage answered this loop."""
        if self._failing and self._failing.pop(loop, 0) and not self._failing:
            log.warning("worker %s: the storage answers again", self._worker)
            self._tell("worker.recovered", None)
            self.over.set()
