"""Answers a call that a full queue refused: 429, with Retry-After if it is known when the queue can have room.

A queue gets room when its jobs start. The earliest moment with room is known in two cases only: a job has paused the
queue until a certain time, or the rate of the queue is used up. In all others the response names no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from treadle.core.errors import QueueFull, StorageError
from treadle.core.limit_model import LimitUse
from treadle.core.queue_rules import QueueRules
from treadle.server.kept_answer import KeptAnswers
from treadle.server.refused import Refused
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore

LOOK: Final = 1.0  # s for which one read of the limits serves all refused calls


class FullQueues:
    """The refusals of one server."""

    def __init__(self, core: AppCore) -> None:
        self._core = core
        self._limits = KeptAnswers[Sequence[LimitUse]](LOOK)

    async def refused(self, error: QueueFull) -> Refused:
        """The response to this error."""
        try:
            limits = await self._limits.get("", self._core.storage.limits)
        except StorageError:
            limits = ()
        error.retry_after = wait_for_room(error, limits, self._core.now())
        status, problem = messages.problem_of(error)
        headers = None if error.retry_after is None else {"Retry-After": str(math.ceil(error.retry_after))}
        return Refused(status, problem.error, problem.message, headers, **problem.details)


def wait_for_room(error: QueueFull, limits: Sequence[LimitUse], now: float) -> float | None:
    """Seconds until the queue can have room, if no job is cancelled; None: unknown, or the call exceeds the bound."""
    if error.asked > error.max_waiting:
        return None
    use = QueueRules(limits).of(error.queue)
    if use is None:
        return None
    moments = []
    if use.pauses:
        ends = [pause.until for pause in use.pauses]
        if None in ends:
            return None
        moments = [end for end in ends if end is not None]
    elif use.next_start is not None and use.rule.rate:
        leave = error.waiting + error.asked - error.max_waiting
        rounds = (leave - 1) // use.rule.rate if use.rule.how == "window" else (leave - 1) / use.rule.rate
        moments = [use.next_start + rounds * use.rule.per]
    wait = max(moments, default=now) - now
    return wait if wait > 0 else None
